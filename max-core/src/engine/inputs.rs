//! What a model executes on: [`Input`], and the forms in which inputs are passed, [`IntoInputs`].

use smallvec::SmallVec;

use crate::driver::Tensor;

/// One input: a tensor that is read, or a buffer that the model may change.
///
/// A buffer is borrowed mutably for the execution, so nobody else sees it half changed. Its memory must not be shared
/// with a clone or a view, as for every write to a [`Tensor`].
#[derive(Debug)]
#[non_exhaustive]
pub enum Input<'a> {
    /// A tensor that is read.
    Tensor(&'a Tensor),
    /// A buffer; also accepted where the model only reads.
    Buffer(&'a mut Tensor),
}

impl Input<'_> {
    /// The tensor.
    pub fn tensor(&self) -> &Tensor {
        match self {
            Input::Tensor(tensor) => tensor,
            Input::Buffer(tensor) => tensor,
        }
    }
}

impl<'a> From<&'a Tensor> for Input<'a> {
    fn from(tensor: &'a Tensor) -> Self {
        Input::Tensor(tensor)
    }
}

impl<'a> From<&'a mut Tensor> for Input<'a> {
    fn from(tensor: &'a mut Tensor) -> Self {
        Input::Buffer(tensor)
    }
}

impl<'a> From<&'a &Tensor> for Input<'a> {
    fn from(tensor: &'a &Tensor) -> Self {
        Input::Tensor(tensor)
    }
}

/// Inputs in the order of the model's; up to 16 are passed without an allocation.
pub type Inputs<'a> = SmallVec<[Input<'a>; 16]>;

/// What [`Model::execute`](super::Model::execute) takes: one tensor, an array, a slice, a `Vec`, a tuple, or `()` for
/// no inputs.
///
/// An array or slice holds tensors, references to tensors, or [`Input`]s. A tuple mixes `&tensor` and `&mut buffer`.
pub trait IntoInputs<'a> {
    /// The inputs.
    fn into_inputs(self) -> Inputs<'a>;
}

impl<'a> IntoInputs<'a> for () {
    fn into_inputs(self) -> Inputs<'a> {
        Inputs::new()
    }
}

impl<'a> IntoInputs<'a> for &'a Tensor {
    fn into_inputs(self) -> Inputs<'a> {
        Inputs::from_iter([self.into()])
    }
}

impl<'a> IntoInputs<'a> for &'a mut Tensor {
    fn into_inputs(self) -> Inputs<'a> {
        Inputs::from_iter([self.into()])
    }
}

impl<'a, I: Into<Input<'a>>, const N: usize> IntoInputs<'a> for [I; N] {
    fn into_inputs(self) -> Inputs<'a> {
        self.into_iter().map(Into::into).collect()
    }
}

impl<'a, I: Into<Input<'a>>> IntoInputs<'a> for Vec<I> {
    fn into_inputs(self) -> Inputs<'a> {
        self.into_iter().map(Into::into).collect()
    }
}

impl<'a, T> IntoInputs<'a> for &'a [T]
where
    &'a T: Into<Input<'a>>,
{
    fn into_inputs(self) -> Inputs<'a> {
        self.iter().map(Into::into).collect()
    }
}

impl<'a, T, const N: usize> IntoInputs<'a> for &'a [T; N]
where
    &'a T: Into<Input<'a>>,
{
    fn into_inputs(self) -> Inputs<'a> {
        self[..].into_inputs()
    }
}

impl<'a, T> IntoInputs<'a> for &'a Vec<T>
where
    &'a T: Into<Input<'a>>,
{
    fn into_inputs(self) -> Inputs<'a> {
        self[..].into_inputs()
    }
}

macro_rules! inputs_from_tuple {
    ($($name:ident)+) => {
        impl<'a, $($name: Into<Input<'a>>),+> IntoInputs<'a> for ($($name,)+) {
            #[allow(non_snake_case, reason = "a variable is named after its type")]
            fn into_inputs(self) -> Inputs<'a> {
                let ($($name,)+) = self;
                Inputs::from_iter([$($name.into()),+])
            }
        }
    };
}
inputs_from_tuple!(A);
inputs_from_tuple!(A B);
inputs_from_tuple!(A B C);
inputs_from_tuple!(A B C D);
inputs_from_tuple!(A B C D E);
inputs_from_tuple!(A B C D E F);
inputs_from_tuple!(A B C D E F G);
inputs_from_tuple!(A B C D E F G H);
