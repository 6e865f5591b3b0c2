//! Reads JSON objects member by member, so that what is not asked for takes no memory, and what is asked for no more than it is.

use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// What is made of the members of an object.
pub(super) trait Object {
    /// Takes the value of one.
    fn member<'de, A: MapAccess<'de>>(&mut self, name: String, values: &mut A) -> Result<(), A::Error>;

    /// Where it notes why a member cannot be taken.
    fn problem(&mut self) -> &mut Option<String>;

    /// Takes no more members.
    fn refuse<E: Error>(&mut self, problem: String) -> Result<(), E> {
        *self.problem() = Some(problem);
        Err(E::custom("refused"))
    }

    /// Reads a member that has members itself; false if it is no object.
    fn inner<'de, A: MapAccess<'de>>(&mut self, inner: &mut impl Object, values: &mut A) -> Result<bool, A::Error> {
        let read = values.next_value_seed(Members(inner));
        if let Some(problem) = inner.problem().take() {
            *self.problem() = Some(problem);
        }
        read
    }
}

/// Reads a text that is one object.
pub(super) fn read(text: &[u8], object: &mut impl Object) -> Result<(), String> {
    let mut json = serde_json::Deserializer::from_slice(text);
    let read = Members(object).deserialize(&mut json).and_then(|is_object| json.end().map(|()| is_object));
    match (read, object.problem().take()) {
        (_, Some(problem)) => Err(problem),
        (Ok(true), None) => Ok(()),
        (Ok(false), None) => Err("is no JSON object: invalid type".to_owned()),
        (Err(error), None) => Err(format!("is no JSON object: {error}")),
    }
}

/// Reads an object; its value is false for anything else.
struct Members<'a, O>(&'a mut O);

impl<'de, O: Object> DeserializeSeed<'de> for Members<'_, O> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<bool, D::Error> {
        json.deserialize_any(self)
    }
}

/// A visitor's answers to all that has no members.
macro_rules! otherwise {
    ($value:expr; $($visit:ident: $ty:ty),*) => {
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a value")
        }

        fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
            Ok($value)
        }

        $(
            fn $visit<E: Error>(self, _: $ty) -> Result<Self::Value, E> {
                Ok($value)
            }
        )*
    };
}

impl<'de, O: Object> Visitor<'de> for Members<'_, O> {
    type Value = bool;

    otherwise!(false; visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f64: f64, visit_str: &str);

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<bool, A::Error> {
        while let Some(name) = members.next_key()? {
            self.0.member(name, &mut members)?;
        }
        Ok(true)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<bool, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(false)
    }
}

/// A value of which only some kinds mean something.
pub(super) enum Field {
    Text(String),
    Number(u64),
    Numbers(Numbers),
    Other,
}

/// A list of numbers.
#[derive(Default)]
pub(super) struct Numbers {
    /// The first ones, as far as a tensor can have dims.
    pub first: Vec<u64>,
    /// How many there are.
    pub count: usize,
}

/// Lists of sizes are no longer than this.
pub(in crate::graph::weights) const LARGEST_RANK: usize = 64;

impl<'de> Deserialize<'de> for Field {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Field, D::Error> {
        struct AnyField;
        impl<'de> Visitor<'de> for AnyField {
            type Value = Field;

            otherwise!(Field::Other; visit_bool: bool, visit_i64: i64, visit_f64: f64);

            fn visit_u64<E: Error>(self, number: u64) -> Result<Field, E> {
                Ok(Field::Number(number))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Field, E> {
                Ok(Field::Text(text.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Field, A::Error> {
                while members.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Field::Other)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Field, A::Error> {
                let (mut numbers, mut all) = (Numbers::default(), true);
                while let Some(item) = items.next_element()? {
                    numbers.count += 1;
                    match item {
                        Field::Number(number) if numbers.count <= LARGEST_RANK => numbers.first.push(number),
                        Field::Number(_) => {}
                        Field::Text(_) | Field::Numbers(_) | Field::Other => all = false,
                    }
                }
                Ok(if all { Field::Numbers(numbers) } else { Field::Other })
            }
        }
        json.deserialize_any(AnyField)
    }
}
