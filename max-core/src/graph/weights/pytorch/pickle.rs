//! The part of Python's pickles that `torch.save` writes of a state dict: dicts, lists, tuples, strings, numbers, and
//! tensors over storages. Nothing is executed: a pickle that asks for any call but those that make tensors is refused.
//!
//! The protocol is that of Python's `pickletools`. Values lie in one list and refer to each other by number, so that a
//! value that contains itself costs nothing here; each opcode adds at most one value, so that memory is bounded by the
//! pickle's length.

use std::collections::HashMap;

use crate::dtype::DType;
use crate::graph::weights::archive::json::LARGEST_RANK;

/// The number of a value.
pub(super) type Id = usize;

/// What a pickle describes.
#[derive(Clone, Debug)]
pub(super) enum Value {
    None,
    Bool,
    Int(i64),
    Float,
    Str(String),
    Bytes,
    Tuple(Vec<Id>),
    List(Vec<Id>),
    Dict(Vec<(Id, Id)>),
    /// A function or a type, by its name with its module. It is named, and not called.
    Global(String),
    Storage(Storage),
    Tensor(TensorPart),
}

/// A storage, which has a file of its own in the archive.
#[derive(Clone, Debug)]
pub(super) struct Storage {
    /// The dtype, or the name of one that is none of ours. A storage of bytes has none.
    pub dtype: Option<Result<DType, String>>,
    /// What its file is called.
    pub key: String,
}

/// A tensor: a part of a storage.
#[derive(Clone, Debug)]
pub(super) struct TensorPart {
    pub storage: String,
    pub dtype: Result<DType, String>,
    /// Elements of the storage before it.
    pub offset: usize,
    pub shape: Vec<usize>,
    pub strides: Vec<usize>,
}

/// The values of a pickle, and which of them it is.
#[derive(Debug)]
pub(super) struct Pickle {
    pub values: Vec<Value>,
    pub root: Id,
}

type Read<T> = Result<T, String>;

/// Reads a pickle.
pub(super) fn read(bytes: &[u8]) -> Read<Pickle> {
    let mut machine =
        Machine { bytes, at: 0, values: Vec::new(), stack: Vec::new(), marks: Vec::new(), memo: HashMap::new() };
    let root = machine.run().map_err(|reason| format!("byte {} of its pickle: {reason}", machine.at))?;
    Ok(Pickle { values: machine.values, root })
}

struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    values: Vec<Value>,
    stack: Vec<Id>,
    /// How high the stack was at each mark.
    marks: Vec<usize>,
    memo: HashMap<u64, Id>,
}

impl<'a> Machine<'a> {
    fn take(&mut self, count: usize) -> Read<&'a [u8]> {
        let taken = self.bytes.get(self.at..).and_then(|rest| rest.get(..count));
        let taken = taken.ok_or_else(|| format!("{count} bytes are to follow, which it does not have"))?;
        self.at += count;
        Ok(taken)
    }

    fn number<const N: usize>(&mut self) -> Read<[u8; N]> {
        let mut bytes = [0; N];
        bytes.copy_from_slice(self.take(N)?);
        Ok(bytes)
    }

    /// So many bytes as the next four say.
    fn counted(&mut self) -> Read<&'a [u8]> {
        let count = u32::from_le_bytes(self.number()?);
        self.take(count as usize)
    }

    fn line(&mut self) -> Read<&'a str> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let end = rest.iter().position(|byte| *byte == b'\n').ok_or("a line without end")?;
        self.at += end + 1;
        std::str::from_utf8(&rest[..end]).map_err(|_| "a name that is no UTF-8".to_owned())
    }

    fn push(&mut self, value: Value) {
        self.values.push(value);
        self.stack.push(self.values.len() - 1);
    }

    fn pop(&mut self) -> Read<Id> {
        let floor = self.marks.last().copied().unwrap_or_default();
        if self.stack.len() <= floor {
            return Err("it takes a value from an empty stack".to_owned());
        }
        self.stack.pop().ok_or_else(|| "an empty stack".to_owned())
    }

    /// What was pushed behind the last mark.
    fn popped_to_mark(&mut self) -> Read<Vec<Id>> {
        let mark = self.marks.pop().ok_or("there is no mark")?;
        Ok(self.stack.split_off(mark.min(self.stack.len())))
    }

    fn remember(&mut self, key: u64) -> Read<()> {
        let top = *self.stack.last().ok_or("it remembers a value of an empty stack")?;
        self.memo.insert(key, top);
        Ok(())
    }

    fn recall(&mut self, key: u64) -> Read<()> {
        let value = *self.memo.get(&key).ok_or_else(|| format!("it recalls value {key}, which it did not remember"))?;
        self.stack.push(value);
        Ok(())
    }

    fn text(bytes: &[u8]) -> Value {
        Value::Str(String::from_utf8_lossy(bytes).into_owned())
    }

    /// The value of the pickle: what is on top of the stack at its end.
    fn run(&mut self) -> Read<Id> {
        loop {
            let [opcode] = self.number()?;
            match opcode {
                b'.' => return self.pop(),
                // PROTO, FRAME
                0x80 => drop(self.take(1)?),
                0x95 => drop(self.take(8)?),
                b'(' => self.marks.push(self.stack.len()),
                b'0' => drop(self.pop()?),
                b'1' => drop(self.popped_to_mark()?),
                b'N' => self.push(Value::None),
                0x88 | 0x89 => self.push(Value::Bool),
                b'J' => {
                    let value = i32::from_le_bytes(self.number()?);
                    self.push(Value::Int(value.into()));
                }
                b'K' => {
                    let [value] = self.number()?;
                    self.push(Value::Int(value.into()));
                }
                b'M' => {
                    let value = u16::from_le_bytes(self.number()?);
                    self.push(Value::Int(value.into()));
                }
                // LONG1: of at most 8 bytes here.
                0x8a => {
                    let [count] = self.number()?;
                    let bytes = self.take(count.into())?;
                    let value = long(bytes)?;
                    self.push(Value::Int(value));
                }
                b'G' => {
                    self.take(8)?;
                    self.push(Value::Float);
                }
                b'X' | b'T' => {
                    let bytes = self.counted()?;
                    self.push(Self::text(bytes));
                }
                0x8c | b'U' => {
                    let [count] = self.number()?;
                    let bytes = self.take(count.into())?;
                    self.push(Self::text(bytes));
                }
                b'B' => {
                    self.counted()?;
                    self.push(Value::Bytes);
                }
                b'C' => {
                    let [count] = self.number()?;
                    self.take(count.into())?;
                    self.push(Value::Bytes);
                }
                b')' => self.push(Value::Tuple(Vec::new())),
                b']' => self.push(Value::List(Vec::new())),
                b'}' => self.push(Value::Dict(Vec::new())),
                b't' => {
                    let values = self.popped_to_mark()?;
                    self.push(Value::Tuple(values));
                }
                0x85..=0x87 => {
                    let mut values = (0x85..=opcode).map(|_| self.pop()).collect::<Read<Vec<Id>>>()?;
                    values.reverse();
                    self.push(Value::Tuple(values));
                }
                b'a' => {
                    let value = self.pop()?;
                    self.append([value])?;
                }
                b'e' => {
                    let values = self.popped_to_mark()?;
                    self.append(values)?;
                }
                b's' => {
                    let (value, key) = (self.pop()?, self.pop()?);
                    self.set([(key, value)])?;
                }
                b'u' => {
                    let values = self.popped_to_mark()?;
                    let pairs: Vec<(Id, Id)> = values.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
                    self.set(pairs)?;
                }
                b'q' => {
                    let [key] = self.number()?;
                    self.remember(key.into())?;
                }
                b'r' => {
                    let key = u32::from_le_bytes(self.number()?);
                    self.remember(key.into())?;
                }
                0x94 => self.remember(self.memo.len() as u64)?,
                b'h' => {
                    let [key] = self.number()?;
                    self.recall(key.into())?;
                }
                b'j' => {
                    let key = u32::from_le_bytes(self.number()?);
                    self.recall(key.into())?;
                }
                b'c' => {
                    let (module, name) = (self.line()?, self.line()?);
                    self.push(Value::Global(format!("{module}.{name}")));
                }
                0x93 => {
                    let (name, module) = (self.pop()?, self.pop()?);
                    let name = format!("{}.{}", self.str(module)?, self.str(name)?);
                    self.push(Value::Global(name));
                }
                b'Q' => {
                    let id = self.pop()?;
                    let storage = self.storage(id)?;
                    self.push(Value::Storage(storage));
                }
                b'R' => {
                    let (arguments, callee) = (self.pop()?, self.pop()?);
                    let value = self.call(callee, arguments)?;
                    self.push(value);
                }
                // The state of an object. That of an ordered dict is what modules say of themselves.
                b'b' => {
                    self.pop()?;
                    let object = *self.stack.last().ok_or("the state of nothing")?;
                    if !matches!(self.values[object], Value::Dict(_) | Value::Tensor(_)) {
                        return Err("it sets the state of an object that is no dict and no tensor".to_owned());
                    }
                }
                other => {
                    return Err(format!("opcode {other:#04x}, which `torch.save` does not write for a state dict"));
                }
            }
        }
    }

    fn append(&mut self, more: impl IntoIterator<Item = Id>) -> Read<()> {
        match self.stack.last().and_then(|list| self.values.get_mut(*list)) {
            Some(Value::List(values)) => {
                values.extend(more);
                Ok(())
            }
            _ => Err("it appends to what is no list".to_owned()),
        }
    }

    fn set(&mut self, more: impl IntoIterator<Item = (Id, Id)>) -> Read<()> {
        match self.stack.last().and_then(|dict| self.values.get_mut(*dict)) {
            Some(Value::Dict(pairs)) => {
                pairs.extend(more);
                Ok(())
            }
            _ => Err("it sets items of what is no dict".to_owned()),
        }
    }

    fn str(&self, id: Id) -> Read<&str> {
        match &self.values[id] {
            Value::Str(text) => Ok(text),
            other => Err(format!("a string is expected, not {}", kind(other))),
        }
    }

    fn tuple(&self, id: Id) -> Read<&[Id]> {
        match &self.values[id] {
            Value::Tuple(values) | Value::List(values) => Ok(values),
            other => Err(format!("a tuple is expected, not {}", kind(other))),
        }
    }

    fn size(&self, id: Id) -> Read<usize> {
        match &self.values[id] {
            Value::Int(value) => usize::try_from(*value).map_err(|_| format!("{value}, where a size is expected")),
            other => Err(format!("a size is expected, not {}", kind(other))),
        }
    }

    fn sizes(&self, id: Id) -> Read<Vec<usize>> {
        let ids = self.tuple(id)?;
        if ids.len() > LARGEST_RANK {
            return Err(format!("a tensor has {} dims, more than the {LARGEST_RANK} that are read", ids.len()));
        }
        ids.iter().map(|id| self.size(*id)).collect()
    }

    /// The storage of a persistent id: `("storage", type, key, device, elements)`.
    fn storage(&self, id: Id) -> Read<Storage> {
        let [tag, ty, key, ..] = *self.tuple(id)? else { return Err("a persistent id that is no storage".to_owned()) };
        let (tag, key) = (self.str(tag)?, self.str(key)?.to_owned());
        let Value::Global(ty) = &self.values[ty] else {
            return Err(format!("a storage's type is {}", kind(&self.values[ty])));
        };
        if tag != "storage" {
            return Err(format!("a persistent id `{tag}`, which is no storage"));
        }
        Ok(Storage { dtype: storage_dtype(ty), key })
    }

    /// What a call makes: of the functions that tensors are made by, and no other.
    fn call(&self, callee: Id, arguments: Id) -> Read<Value> {
        let Value::Global(name) = &self.values[callee] else {
            return Err(format!("it calls {}", kind(&self.values[callee])));
        };
        let arguments = self.tuple(arguments)?;
        match (name.as_str(), arguments) {
            ("torch._utils._rebuild_tensor_v2", [storage, offset, shape, strides, ..]) => {
                self.tensor(*storage, None, [*offset, *shape, *strides])
            }
            ("torch._utils._rebuild_tensor_v3", [storage, offset, shape, strides, _, _, dtype, ..]) => {
                let Value::Global(dtype) = &self.values[*dtype] else {
                    return Err(format!("a tensor's dtype is {}", kind(&self.values[*dtype])));
                };
                self.tensor(*storage, Some(tensor_dtype(dtype)), [*offset, *shape, *strides])
            }
            ("torch._utils._rebuild_parameter" | "torch._utils._rebuild_parameter_with_state", [data, ..]) => {
                Ok(self.values[*data].clone())
            }
            ("torch.Size", [sizes]) => Ok(Value::Tuple(self.tuple(*sizes)?.to_vec())),
            ("collections.OrderedDict", []) => Ok(Value::Dict(Vec::new())),
            ("collections.OrderedDict", [pairs]) => {
                let pair = |id: &Id| match *self.tuple(*id)? {
                    [key, value] => Ok((key, value)),
                    _ => Err("an item of a dict that is no pair".to_owned()),
                };
                Ok(Value::Dict(self.tuple(*pairs)?.iter().map(pair).collect::<Read<_>>()?))
            }
            (name, arguments) => Err(format!(
                "it asks for a call of `{name}` with {} arguments; nothing is called but what makes tensors of a state dict, \
                 so save `model.state_dict()`, or convert it to safetensors",
                arguments.len()
            )),
        }
    }

    fn tensor(
        &self,
        storage: Id,
        dtype: Option<Result<DType, String>>,
        [offset, shape, strides]: [Id; 3],
    ) -> Read<Value> {
        let Value::Storage(storage) = &self.values[storage] else {
            return Err(format!("a tensor over {}, where a storage is expected", kind(&self.values[storage])));
        };
        let dtype = dtype.or_else(|| storage.dtype.clone()).ok_or("a tensor over bytes without a dtype")?;
        let (shape, strides) = (self.sizes(shape)?, self.sizes(strides)?);
        if shape.len() != strides.len() {
            return Err(format!("a tensor of shape {shape:?} has strides {strides:?}"));
        }
        Ok(Value::Tensor(TensorPart {
            storage: storage.key.clone(),
            dtype,
            offset: self.size(offset)?,
            shape,
            strides,
        }))
    }
}

/// The integer of its bytes, the lowest first, in two's complement.
fn long(bytes: &[u8]) -> Read<i64> {
    let Some(last) = bytes.last() else { return Ok(0) };
    if bytes.len() > 8 {
        return Err(format!("an integer of {} bytes", bytes.len()));
    }
    let mut all = [if *last < 0x80 { 0 } else { 0xff }; 8];
    all[..bytes.len()].copy_from_slice(bytes);
    Ok(i64::from_le_bytes(all))
}

/// The dtype of a storage's type; none for one of bytes.
fn storage_dtype(name: &str) -> Option<Result<DType, String>> {
    let short = name.strip_prefix("torch.").and_then(|name| name.strip_suffix("Storage"));
    Some(Ok(match short {
        Some("Double") => DType::F64,
        Some("Float") => DType::F32,
        Some("Half") => DType::F16,
        Some("BFloat16") => DType::BF16,
        Some("Long") => DType::I64,
        Some("Int") => DType::I32,
        Some("Short") => DType::I16,
        Some("Char") => DType::I8,
        Some("Byte") => DType::U8,
        Some("Bool") => DType::Bool,
        _ if name == "torch.storage.UntypedStorage" => return None,
        _ => return Some(Err(name.to_owned())),
    }))
}

/// The dtype of PyTorch's name of it.
fn tensor_dtype(name: &str) -> Result<DType, String> {
    Ok(match name.strip_prefix("torch.") {
        Some("float64") => DType::F64,
        Some("float32") => DType::F32,
        Some("float16") => DType::F16,
        Some("bfloat16") => DType::BF16,
        Some("int64") => DType::I64,
        Some("int32") => DType::I32,
        Some("int16") => DType::I16,
        Some("int8") => DType::I8,
        Some("uint64") => DType::U64,
        Some("uint32") => DType::U32,
        Some("uint16") => DType::U16,
        Some("uint8") => DType::U8,
        Some("bool") => DType::Bool,
        Some("float8_e4m3fn") => DType::F8E4M3FN,
        Some("float8_e4m3fnuz") => DType::F8E4M3FNUZ,
        Some("float8_e5m2") => DType::F8E5M2,
        Some("float8_e5m2fnuz") => DType::F8E5M2FNUZ,
        _ => return Err(name.to_owned()),
    })
}

/// What a value is called in messages.
pub(super) fn kind(value: &Value) -> &'static str {
    match value {
        Value::None => "`None`",
        Value::Bool => "a bool",
        Value::Int(_) => "an integer",
        Value::Float => "a float",
        Value::Str(_) => "a string",
        Value::Bytes => "bytes",
        Value::Tuple(_) => "a tuple",
        Value::List(_) => "a list",
        Value::Dict(_) => "a dict",
        Value::Global(_) => "a function or type",
        Value::Storage(_) => "a storage",
        Value::Tensor(_) => "a tensor",
    }
}
