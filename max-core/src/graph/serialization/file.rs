//! Graphs in texts and files.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic::Location;
use std::path::Path;

use super::parse::{Outside, parse};
use super::text::WithConstants;
use crate::driver::Tensor;
use crate::graph::Graph;
use crate::graph::builder::site::{Result, Site};
use crate::graph::error::{GraphError, GraphErrorKind};
use crate::graph::types::Type;
use crate::graph::weights::{SafetensorWeights, WeightsError, WeightsFormat, save_safetensors};

/// What the text of a graph is called in the metadata of its file.
const TEXT: &str = "max.graph";

impl Graph {
    /// The graph of a text form, which [`Display`](std::fmt::Display) gave: `Graph::parse(&graph.to_string())`. Constants of
    /// more than eight elements are not in the text; [`save`](Graph::save) writes them too.
    ///
    /// What is read is checked as ops check what they are given. The caller's line stands for those that added the ops.
    ///
    /// ```
    /// # use max_core::graph::Graph;
    /// let text = "graph twice(%0: float32[n]) {\n  %1 = add(%0, %0) : float32[n]\n  return %1\n}\n";
    /// assert_eq!(Graph::parse(text)?.to_string(), text);
    /// # Ok::<(), max_core::graph::GraphError>(())
    /// ```
    ///
    /// # Errors
    /// [`GraphErrorKind::Text`], with line and column, for the first thing that is not as it should be.
    #[track_caller]
    pub fn parse(text: &str) -> Result<Graph> {
        Graph::read(Site::new("parse"), text, &|_| None)
    }

    #[track_caller]
    fn read(site: Site, text: &str, outside: Outside<'_>) -> Result<Graph> {
        let location = Location::caller();
        let fail = |kind| GraphError::new(site.op.clone(), None, Vec::new(), location, kind);
        Ok(Graph::finished_of(parse(text, outside, location).map_err(fail)?, location))
    }

    /// Writes the graph to a file, with its constants, from which [`Graph::load`] and
    /// [`InferenceSession::load_file`](crate::engine::InferenceSession::load_file) read it. Weights stay where they are.
    ///
    /// The file is a safetensors file: its tensors are the constants, and the metadata hold the text form.
    ///
    /// # Errors
    /// The graph's first mistake, or that it has no outputs; when the file cannot be written.
    #[track_caller]
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let site = Site::new("save");
        let data = self.finished()?.clone();
        let constants: RefCell<Vec<Tensor>> = RefCell::new(Vec::new());
        let note = |tensor: &Tensor| {
            let mut all = constants.borrow_mut();
            all.push(tensor.clone());
            format!("@c{}", all.len() - 1)
        };
        let text = WithConstants(&data, &note).to_string();
        let constants = constants.into_inner();
        let tensors = constants.iter().enumerate().map(|(i, tensor)| (format!("c{i}"), tensor));
        let metadata = BTreeMap::from([(TEXT.to_owned(), text)]);
        save_safetensors(path, tensors, &metadata).map_err(|error| self.file_error(&site, error))
    }

    /// The graph of a file that [`save`](Graph::save) wrote. Its constants are mapped, not copied, where the file allows it.
    ///
    /// # Errors
    /// When the file cannot be read, is damaged, or holds no graph; those of [`parse`](Graph::parse).
    #[track_caller]
    pub fn load(path: impl AsRef<Path>) -> Result<Graph> {
        let site = Site::new("load");
        let path = path.as_ref();
        let failed = |error: WeightsError| {
            let kind = GraphErrorKind::Weights { source: error.into() };
            GraphError::new("load".into(), None, Vec::new(), site.location, kind)
        };
        let file = SafetensorWeights::open([path]).map_err(failed)?;
        let Some(text) = file.metadata().get(TEXT).cloned() else {
            let reason = format!("its metadata have no `{TEXT}`: it is no file of `Graph::save`");
            return Err(failed(WeightsError::Format {
                path: path.to_path_buf(),
                format: WeightsFormat::Safetensors,
                reason,
            }));
        };
        Graph::read(Site::new("load"), &text, &|name| file.tensor(name).ok())
    }

    fn file_error(&self, site: &Site, error: WeightsError) -> GraphError {
        site.error(self.reference(), None::<Type>, GraphErrorKind::Weights { source: error.into() })
    }
}
