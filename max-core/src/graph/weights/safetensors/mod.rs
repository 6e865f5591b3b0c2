//! [`SafetensorWeights`]: weights in files of the format [safetensors](https://huggingface.co/docs/safetensors), read
//! here and written in `write.rs`.

pub(super) mod write;

use std::collections::BTreeMap;
use std::fs::File;

use super::WeightsFormat;
use super::archive::header::{self, Header, HeaderError};
use super::archive::private::Read;
use super::archive::{FileWeights, Format};

/// The format safetensors: a header in JSON, then the bytes of all tensors.
pub enum Safetensors {}

/// The weights in one safetensors file or several.
pub type SafetensorWeights = FileWeights<Safetensors>;

impl Read for Safetensors {
    type Metadata = BTreeMap<String, String>;

    fn header(file: &mut File, bytes: u64) -> Result<Header<Self::Metadata>, HeaderError> {
        header::read(file, bytes)
    }

    fn merge(all: &mut Self::Metadata, more: Self::Metadata) {
        all.extend(more);
    }

    fn merge_index(all: &mut Self::Metadata, index: BTreeMap<String, String>) {
        all.extend(index);
    }

    fn format(_: &mut File) -> WeightsFormat {
        WeightsFormat::Safetensors
    }
}

impl Format for Safetensors {}

impl SafetensorWeights {
    /// What was written about the files beside their tensors (`__metadata__`), and in an index (`metadata`); of a key in
    /// several, the last value.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        self.told()
    }
}
