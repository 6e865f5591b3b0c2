//! [`ChatTemplate`]: a conversation as a prompt. Templates come with models, so their time and memory are bounded.

use std::io::{self, Write};
use std::path::PathBuf;

use minijinja::value::Kwargs;
use minijinja::{Environment, ErrorKind, context};
use serde::Serialize;
use serde_json::Value;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

use crate::error::{PipelineError, Result};

/// The instructions that a template may take.
const FUEL: u64 = 10_000_000;

/// How deep calls may nest.
const DEPTH: usize = 100;

/// The most spaces of an indent of JSON.
const MOST_SPACES: usize = 16;

/// The most bytes of a prompt.
const LONGEST: usize = 64 << 20;

/// A message of a conversation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ChatMessage {
    /// Who says it: `system`, `user` or `assistant`.
    pub role: String,
    /// What is said.
    pub content: String,
}

impl ChatMessage {
    /// What a user says.
    pub fn user(content: impl Into<String>) -> ChatMessage {
        ChatMessage { role: "user".into(), content: content.into() }
    }

    /// What is told to the model before a conversation.
    pub fn system(content: impl Into<String>) -> ChatMessage {
        ChatMessage { role: "system".into(), content: content.into() }
    }

    /// What the model has said.
    pub fn assistant(content: impl Into<String>) -> ChatMessage {
        ChatMessage { role: "assistant".into(), content: content.into() }
    }
}

/// A function that a model may call: what a template tells the model of it.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct TextGenerationRequestFunction {
    /// Its name.
    pub name: String,
    /// What it is for.
    pub description: Option<String>,
    /// A JSON schema of its arguments.
    pub parameters: Value,
}

/// A tool that a model may use.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct TextGenerationRequestTool {
    /// What it is: `function`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The function.
    pub function: TextGenerationRequestFunction,
}

impl TextGenerationRequestTool {
    /// A function.
    pub fn function(function: TextGenerationRequestFunction) -> TextGenerationRequestTool {
        TextGenerationRequestTool { kind: "function".into(), function }
    }
}

/// A template with the special tokens that it may name.
pub(super) struct ChatTemplate {
    path: PathBuf,
    text: String,
    bos_token: String,
    eos_token: String,
}

impl ChatTemplate {
    pub(super) fn new(path: PathBuf, text: String, config: &Value) -> ChatTemplate {
        let token = |key: &str| {
            let value = config.get(key).unwrap_or(&Value::Null);
            value.as_str().or_else(|| value.get("content")?.as_str()).unwrap_or_default().to_owned()
        };
        ChatTemplate { path, text, bos_token: token("bos_token"), eos_token: token("eos_token") }
    }

    pub(super) fn apply(&self, messages: &[ChatMessage], tools: &[TextGenerationRequestTool]) -> Result<String> {
        let fail = |reason: String| PipelineError::ChatTemplate { path: self.path.clone(), reason };
        let mut environment = Environment::new();
        environment.set_fuel(Some(FUEL));
        environment.set_recursion_limit(DEPTH);
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |message: String| -> Result<String, minijinja::Error> {
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
        });
        // Tools are told to models as they are: the built-in filter would escape what means something in HTML.
        environment.add_filter("tojson", |value: minijinja::Value, settings: Kwargs| {
            let indent: Option<usize> = settings.get("indent")?;
            json_text(&value, indent)
                .map(minijinja::Value::from_safe_string)
                .map_err(|error| minijinja::Error::new(ErrorKind::BadSerialization, error.to_string()))
        });
        // Without tools there are none, rather than an empty list.
        let tools = (!tools.is_empty()).then_some(tools);
        let text = environment.render_str(
            &self.text,
            context! {
                messages, tools, bos_token => self.bos_token, eos_token => self.eos_token, add_generation_prompt => true,
            },
        );
        // The reason within is the one that says what to do.
        let text = text.map_err(|error| fail(error.to_string()))?;
        if text.len() > LONGEST {
            return Err(fail(format!("made {} bytes, more than {LONGEST}", text.len())));
        }
        Ok(text)
    }
}

/// JSON as Python's `json.dumps` writes it, which templates are written for: a space behind each comma and colon, or a line for
/// each value.
fn json_text(value: &impl Serialize, indent: Option<usize>) -> serde_json::Result<String> {
    let mut text = Vec::new();
    match indent {
        None => value.serialize(&mut Serializer::with_formatter(&mut text, Spaced))?,
        Some(indent) => {
            let spaces = " ".repeat(indent.min(MOST_SPACES));
            let lines = PrettyFormatter::with_indent(spaces.as_bytes());
            value.serialize(&mut Serializer::with_formatter(&mut text, lines))?;
        }
    }
    String::from_utf8(text).map_err(serde::ser::Error::custom)
}

/// A line of JSON with spaces.
struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: Write + ?Sized>(&mut self, to: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { to.write_all(b", ") }
    }

    fn begin_object_key<W: Write + ?Sized>(&mut self, to: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { to.write_all(b", ") }
    }

    fn begin_object_value<W: Write + ?Sized>(&mut self, to: &mut W) -> io::Result<()> {
        to.write_all(b": ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(text: &str) -> ChatTemplate {
        ChatTemplate::new("template".into(), text.into(), &serde_json::json!({"bos_token": {"content": "<s>"}}))
    }

    #[test]
    fn makes_a_prompt() {
        let text = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m['content'].strip() }}\n{% endfor %}";
        let prompt = template(text).apply(&[ChatMessage::system("Be brief. "), ChatMessage::user("Hi")], &[]);
        assert_eq!(prompt.unwrap(), "<s>system: Be brief.\nuser: Hi\n");
    }

    #[test]
    fn tells_of_tools() {
        let text = "{% if tools %}{% for tool in tools %}{{ tool | tojson }}{% endfor %}{% else %}none{% endif %}";
        let tool = TextGenerationRequestTool::function(TextGenerationRequestFunction {
            name: "add".into(),
            description: None,
            parameters: serde_json::json!({"type": "object", "required": ["b", "a"]}),
        });
        let prompt = template(text).apply(&[], std::slice::from_ref(&tool)).unwrap();
        // As Python writes it: keys in their order, and spaces.
        let function =
            r#"{"name": "add", "description": null, "parameters": {"type": "object", "required": ["b", "a"]}}"#;
        assert_eq!(prompt, format!(r#"{{"type": "function", "function": {function}}}"#));
        let lines = template("{{ tools[0].function.parameters | tojson(indent=2) }}").apply(&[], &[tool]).unwrap();
        assert_eq!(lines, "{\n  \"type\": \"object\",\n  \"required\": [\n    \"b\",\n    \"a\"\n  ]\n}");
        assert_eq!(template(text).apply(&[], &[]).unwrap(), "none");
    }

    #[test]
    fn says_what_a_template_refuses() {
        let error = template("{{ raise_exception('roles must alternate') }}").apply(&[], &[]).unwrap_err().to_string();
        assert!(error.contains("roles must alternate"), "{error}");
    }

    #[test]
    fn ends_templates_that_do_not_end() {
        let endless = "{% for a in range(100000) %}{% for b in range(100000) %}{{ a }}{% endfor %}{% endfor %}";
        let deep = "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}";
        for text in [endless, deep, "{% for %}"] {
            assert!(template(text).apply(&[], &[]).is_err(), "{text}");
        }
    }
}
