//! [`IntoTypes`] and [`IntoValues`]: the lists that graphs and custom ops take: one item, an array, a slice, a `Vec`, a
//! tuple of several kinds, or `()` for an empty list.

use super::super::types::{BufferType, TensorType, Type};
use super::{BufferValue, TensorValue, Value};

macro_rules! list_trait {
    ($(#[doc = $doc:literal])+ $trait:ident $method:ident $item:ident: $($one:ty),+) => {
        $(#[doc = $doc])+
        pub trait $trait {
            /// The items.
            fn $method(self) -> Vec<$item>;
        }

        impl $trait for () {
            fn $method(self) -> Vec<$item> {
                Vec::new()
            }
        }

        $(
            impl $trait for $one {
                fn $method(self) -> Vec<$item> {
                    vec![self.into()]
                }
            }
        )+

        impl<T: Into<$item>, const N: usize> $trait for [T; N] {
            fn $method(self) -> Vec<$item> {
                self.into_iter().map(Into::into).collect()
            }
        }

        impl<T: Into<$item>> $trait for Vec<T> {
            fn $method(self) -> Vec<$item> {
                self.into_iter().map(Into::into).collect()
            }
        }

        impl<T: Into<$item> + Clone> $trait for &[T] {
            fn $method(self) -> Vec<$item> {
                self.iter().cloned().map(Into::into).collect()
            }
        }

        impl<T: Into<$item> + Clone> $trait for &Vec<T> {
            fn $method(self) -> Vec<$item> {
                self.as_slice().$method()
            }
        }

        list_trait!(@tuple $trait $method $item: A 0, B 1);
        list_trait!(@tuple $trait $method $item: A 0, B 1, C 2);
        list_trait!(@tuple $trait $method $item: A 0, B 1, C 2, D 3);
        list_trait!(@tuple $trait $method $item: A 0, B 1, C 2, D 3, E 4);
        list_trait!(@tuple $trait $method $item: A 0, B 1, C 2, D 3, E 4, F 5);
    };
    (@tuple $trait:ident $method:ident $item:ident: $($name:ident $index:tt),+) => {
        impl<$($name: Into<$item>),+> $trait for ($($name,)+) {
            fn $method(self) -> Vec<$item> {
                vec![$(self.$index.into()),+]
            }
        }
    };
}
list_trait! {
    /// A list of types: of a graph's inputs, of an op's results.
    IntoTypes into_types Type: TensorType, BufferType, Type, &TensorType, &BufferType, &Type
}
list_trait! {
    /// A list of values: a graph's outputs, an op's operands.
    IntoValues into_values Value: TensorValue, BufferValue, Value, &TensorValue, &BufferValue, &Value
}
