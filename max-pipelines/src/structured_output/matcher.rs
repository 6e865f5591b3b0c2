//! [`Matcher`]: which tokens may come next in a text of a form, by llguidance.

use std::sync::{Arc, Mutex, PoisonError};

use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher as Parser, ParserFactory};
use tokenizers::Tokenizer;

use super::TextGenerationResponseFormat;
use super::token_bytes::token_bytes;
use crate::error::{PipelineError, Result};

/// Where a text of a form is.
pub(crate) struct Matcher {
    parser: Parser,
    kind: &'static str,
}

impl Matcher {
    /// Rules out the tokens that break the form.
    pub fn mask(&mut self, logits: &mut [f32]) -> Result<()> {
        let mask = self.parser.compute_mask_or_eos().map_err(|error| failed(self.kind, &error))?;
        for (token, logit) in (0..).zip(logits) {
            if token as usize >= mask.len() || !mask.is_allowed(token) {
                *logit = f32::NEG_INFINITY;
            }
        }
        Ok(())
    }

    /// Goes on by a token; `true` where the text can have no further one.
    pub fn consume(&mut self, token: u32) -> Result<bool> {
        self.parser.consume_token(token).map_err(|error| failed(self.kind, &error))?;
        Ok(self.parser.is_stopped())
    }
}

/// The forms of texts in the tokens of one tokenizer, whose trie is made once.
pub(crate) struct Grammars(Mutex<Option<Arc<ParserFactory>>>);

impl Grammars {
    pub fn new() -> Grammars {
        Grammars(Mutex::new(None))
    }

    /// A text of a form, from its beginning.
    ///
    /// # Errors
    /// When there is no such text, the form is not known, too large, or the model has no token that ends a text.
    pub fn matcher(
        &self,
        format: &TextGenerationResponseFormat,
        tokenizer: &Tokenizer,
        eos_token_ids: &[u32],
        vocab_size: usize,
    ) -> Result<Matcher> {
        let kind = format.kind();
        let factory = self.factory(kind, tokenizer, eos_token_ids, vocab_size)?;
        let grammar = match format {
            TextGenerationResponseFormat::JsonSchema(schema) => TopLevelGrammar::from_json_schema(schema.clone()),
            TextGenerationResponseFormat::Grammar(grammar) => TopLevelGrammar::from_lark(grammar.clone()),
            TextGenerationResponseFormat::Regex(regex) => TopLevelGrammar::from_regex(regex),
        };
        let parser = Parser::new(factory.create_parser(grammar));
        match parser.get_error() {
            None => Ok(Matcher { parser, kind }),
            Some(error) => Err(PipelineError::ResponseFormat { kind, reason: error }),
        }
    }

    fn factory(
        &self,
        kind: &'static str,
        tokenizer: &Tokenizer,
        eos_token_ids: &[u32],
        vocab_size: usize,
    ) -> Result<Arc<ParserFactory>> {
        let mut made = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(factory) = &*made {
            return Ok(factory.clone());
        }
        let known: Vec<u32> = eos_token_ids.iter().copied().filter(|token| (*token as usize) < vocab_size).collect();
        let Some(eos) = known.first() else {
            let reason =
                "the model names no token that ends a text (`eos_token_id`), so no form is ever complete".into();
            return Err(PipelineError::ResponseFormat { kind, reason });
        };
        let bytes = token_bytes(tokenizer, vocab_size);
        let size = u32::try_from(vocab_size).unwrap_or(u32::MAX);
        let trie = TokTrie::from(&TokRxInfo::new(size, *eos), &bytes).with_eos_tokens(&known);
        let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory = ParserFactory::new_simple(&environment).map_err(|error| failed(kind, &error))?;
        factory.quiet();
        *factory.limits_mut() = ParserLimits { verbose_errors: false, ..ParserLimits::default() };
        let factory = Arc::new(factory);
        *made = Some(factory.clone());
        Ok(factory)
    }
}

fn failed(kind: &'static str, error: &impl std::fmt::Display) -> PipelineError {
    PipelineError::ResponseFormat { kind, reason: error.to_string() }
}
