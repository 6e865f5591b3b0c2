//! Encoders, whose tokens see each other: BERT and MPNet.

mod bert;
mod encoder;
mod mpnet;

pub(super) use bert::bert;
pub(super) use mpnet::mpnet;
