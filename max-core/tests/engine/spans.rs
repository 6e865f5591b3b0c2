//! Spans of `tracing`: what a subscriber hears of loads and executions.

use std::fmt::Debug;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::kernels::*;
use max::engine::InferenceSession;
use max::graph::{Graph, ops};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Notes the spans that begin, with their fields.
struct Notes {
    spans: &'static Mutex<Vec<String>>,
    next: AtomicU64,
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0 += &format!(" {}={value:?}", field.name());
    }
}

impl Subscriber for Notes {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut text = Text(span.metadata().name().to_owned());
        span.record(&mut text);
        self.spans.lock().unwrap().push(text.0);
        Id::from_u64(1 + self.next.fetch_add(1, Ordering::Relaxed))
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[test]
fn loads_executions_and_steps_are_spans() {
    let spans: &'static Mutex<Vec<String>> = Box::leak(Box::default());
    tracing::subscriber::with_default(Notes { spans, next: AtomicU64::default() }, || {
        let run = || {
            let graph = Graph::build("spans", [f32s((2, 3))], |_, x| ops::sum(&x[0], 1)).unwrap();
            let model = InferenceSession::new().load(&graph).unwrap();
            model.execute(&count(&[2, 3])).unwrap();
        };
        // Another test that meets a span for the first time at the same time may note that nobody listens.
        run();
        tracing_core::callsite::rebuild_interest_cache();
        spans.lock().unwrap().clear();
        run();
    });
    let spans = spans.lock().unwrap();
    let of = |name: &str| spans.iter().filter(|span| span.split(' ').next() == Some(name)).collect::<Vec<_>>();
    assert_eq!(of("load"), ["load model=\"spans\" nodes=2"]);
    assert_eq!(of("execute"), ["execute model=\"spans\""]);
    assert!(of("pass").iter().any(|pass| pass.contains("\"lower\"")), "{spans:?}");
    let [step] = of("step")[..] else { panic!("one step: {spans:?}") };
    assert!(step.contains("op=\"sum\" kernel=\"sum\"") && step.contains("spans.rs:") && step.contains("cpu"), "{step}");
}
