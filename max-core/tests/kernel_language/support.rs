//! Runs a kernel in each of its forms.

use std::fmt::Debug;

use max::dtype::{DType, Element};
use max::kernel::abi::{Access, KernelDef};
use max::kernel::{Form, Kernel, KernelError, KernelLibrary, ParamArg, TensorArg, form};

/// A contiguous operand.
#[derive(Clone, Debug)]
pub struct Operand {
    /// Storage, aligned for every dtype.
    words: Vec<u64>,
    dims: Vec<i64>,
    dtype: DType,
}

impl Operand {
    /// The elements in row-major order.
    pub fn values<T: Element>(&self) -> Vec<T> {
        assert_eq!(self.dtype, T::DTYPE);
        // SAFETY: the storage holds that many elements of this dtype.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr().cast::<T>(), self.len()) }.to_vec()
    }

    fn len(&self) -> usize {
        self.dims.iter().product::<i64>() as usize
    }
}

/// An operand of these dims and values.
pub fn tensor<T: Element>(dims: &[i64], values: &[T]) -> Operand {
    assert_eq!(dims.iter().product::<i64>() as usize, values.len());
    let mut words = vec![0_u64; size_of_val(values).div_ceil(8)];
    // SAFETY: the storage is at least as large as the values.
    unsafe {
        std::ptr::copy_nonoverlapping(values.as_ptr().cast::<u8>(), words.as_mut_ptr().cast(), size_of_val(values))
    };
    Operand { words, dims: dims.to_vec(), dtype: T::DTYPE }
}

/// A vector.
pub fn vector<T: Element>(values: &[T]) -> Operand {
    tensor(&[values.len() as i64], values)
}

/// A result that holds `garbage` until it is written.
pub fn blank<T: Element>(dims: &[i64], garbage: T) -> Operand {
    tensor(dims, &vec![garbage; dims.iter().product::<i64>() as usize])
}

/// The forms that are compiled and that this machine runs, or that of `MAX_CPU_LEVEL` and the reference form.
pub fn forms() -> Vec<Form> {
    if std::env::var_os("MAX_CPU_LEVEL").is_some() {
        return vec![form().expect("a level of this machine"), Form::Reference];
    }
    KernelLibrary::linked().levels().into_iter().map(Form::Compiled).chain([Form::Reference]).collect()
}

/// The most elements of an operand, if `MAX_TEST_ELEMENTS` says that more are too many for what runs the tests, such as valgrind.
fn most_elements() -> Option<usize> {
    std::env::var("MAX_TEST_ELEMENTS").ok().map(|most| most.parse().expect("MAX_TEST_ELEMENTS is a number"))
}

/// Whether a test has operands of so many elements.
pub fn is_tested(elements: usize) -> bool {
    most_elements().is_none_or(|most| elements <= most)
}

/// All of many cases, or every so-manieth where not all operands are tested either.
pub fn some_of<T>(cases: impl Iterator<Item = T>, every: usize) -> impl Iterator<Item = T> {
    cases.step_by(if most_elements().is_some() { every } else { 1 })
}

/// The operands after `K` ran in one form.
pub fn run<K: Kernel>(form: Form, operands: &[Operand], params: &[(&str, ParamArg)]) -> Vec<Operand> {
    try_run::<K>(form, operands, params).unwrap_or_else(|e| panic!("{e}"))
}

/// The same, or why it did not run.
pub fn try_run<K: Kernel>(
    form: Form,
    operands: &[Operand],
    params: &[(&str, ParamArg)],
) -> Result<Vec<Operand>, KernelError> {
    let def: &'static KernelDef = K::def();
    let dtypes: Vec<DType> = operands.iter().map(|o| o.dtype).collect();
    let bound = def
        .bind(&dtypes, |name| params.iter().find(|(n, _)| *n == name).map(|(_, v)| *v), form)
        .unwrap_or_else(|e| panic!("{e}"));
    let mut operands = operands.to_vec();
    let strides: Vec<Vec<i64>> = operands.iter().map(|o| strides(&o.dims)).collect();
    let args: Vec<TensorArg> = operands
        .iter_mut()
        .zip(&strides)
        .map(|(o, strides)| TensorArg { ptr: o.words.as_mut_ptr().cast(), dims: &o.dims, strides })
        .collect();
    // SAFETY: each operand is its own, contiguous memory, of the dtype that was bound.
    unsafe { bound.launch(&args) }?;
    Ok(operands)
}

fn strides(dims: &[i64]) -> Vec<i64> {
    (0..dims.len()).map(|d| dims[d + 1..].iter().product()).collect()
}

/// Checks the last operand in every form.
#[track_caller]
pub fn check<K: Kernel, T: Element + Debug + PartialEq>(
    operands: &[Operand],
    params: &[(&str, ParamArg)],
    expected: &[T],
) {
    for form in forms() {
        let after = run::<K>(form, operands, params);
        assert_eq!(
            after.last().map(Operand::values::<T>).as_deref(),
            Some(expected),
            "{} {form:?}",
            K::def().name.as_str()
        );
    }
}

/// Checks an elementwise kernel of one input and one result of the same dtype.
#[track_caller]
pub fn check_unary<K: Kernel, T: Element + Debug + PartialEq + Default>(inputs: &[T], expected: &[T]) {
    check::<K, T>(&[vector(inputs), blank(&[inputs.len() as i64], T::default())], &[], expected);
    let out = K::def().operands.as_slice().last().map(|o| o.access);
    assert_eq!(out, Some(Access::Out));
}
