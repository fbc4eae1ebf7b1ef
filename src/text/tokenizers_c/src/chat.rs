//! Renders chat templates as transformers does, with minijinja in place of Jinja, and returns the
//! text ranges that `{% generation %}` blocks wrote.

use crate::budget;
use crate::guarded::{add_guarded, ask_method, check_source, format, guard_instructions};
use crate::python::{from_json, is_blank, to_json, to_str, Date};
use crate::Failure;
use minijinja::machinery::{
    eval, make_string_output, CompiledTemplate, Instructions, TemplateConfig,
};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{from_args, Value, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State};
use minijinja_contrib::pycompat;
use serde_json::{Map, Value as Json};
use std::collections::BTreeMap;
use std::sync::Arc;

const NAME: &str = "chat template";
/// The limit of instructions per rendering, which stops endless loops.
const FUEL: u64 = 20_000_000;
/// The prefix of an error that the template itself raised.
const RAISED: &str = "the chat template says: ";
/// Marks around generated parts during rendering: noncharacters of Unicode. The first pair is used
/// that occurs in neither template nor conversation.
const MARKS: [(char, char); 4] = [
    ('\u{fdd0}', '\u{fdd1}'),
    ('\u{fdd2}', '\u{fdd3}'),
    ('\u{fdd4}', '\u{fdd5}'),
    ('\u{fdd6}', '\u{fdd7}'),
];

/// A compiled template with guards. It owns the text that the instructions point into.
struct Program {
    main: Instructions<'static>,
    blocks: BTreeMap<&'static str, Instructions<'static>>,
    _text: Box<str>,
}

impl Program {
    fn new(text: String, syntax: SyntaxConfig) -> Result<Program, Error> {
        let text = text.into_boxed_str();
        // SAFETY: the text is on the heap, never changes, and is dropped after all references.
        let lasting: &'static str = unsafe { &*std::ptr::from_ref::<str>(&text) };
        check_source(lasting, syntax.clone())?;
        let config = TemplateConfig {
            syntax_config: syntax,
            default_auto_escape: Arc::new(|_| AutoEscape::None),
        };
        let compiled = CompiledTemplate::new(NAME, lasting, &config)?;
        let blocks = compiled.blocks.iter();
        Ok(Program {
            main: guard_instructions(&compiled.instructions),
            blocks: blocks.map(|(name, block)| (*name, guard_instructions(block))).collect(),
            _text: text,
        })
    }
}

pub struct Chat {
    program: Program,
    environment: Environment<'static>,
    source: String,
    constants: Map<String, Json>,
    pub uses_date: bool,
}

/// The rendered text and the byte offsets (start, end) of its generation blocks, in order.
pub struct Rendered {
    pub text: String,
    pub generated: Vec<usize>,
}

/// Splits `tag`, the text between "{%" and "%}", into whitespace sign, word, whitespace sign.
fn bare_tag(tag: &str) -> (&str, &str, &str) {
    let open = if tag.starts_with(['-', '+']) { &tag[..1] } else { "" };
    let rest = &tag[open.len()..];
    let close = if rest.ends_with(['-', '+']) {
        &rest[rest.len() - 1..]
    } else {
        ""
    };
    (open, rest[..rest.len() - close.len()].trim(), close)
}

/// Returns the offset of the next tag or comment.
fn next_tag(text: &str) -> Option<usize> {
    let braces = text.match_indices('{').map(|(at, _)| at);
    braces
        .into_iter()
        .find(|at| matches!(text.as_bytes().get(at + 1), Some(b'%' | b'#')))
}

/// Rewrites `{% generation %}` blocks for minijinja: a filter marks the body, which has a scope of
/// its own.
fn rewrite_generation(source: &str) -> String {
    let mut out = String::with_capacity(source.len() + 64);
    let mut rest = source;
    while let Some(open) = next_tag(rest) {
        out.push_str(&rest[..open]);
        rest = &rest[open..];
        let end = if rest.starts_with("{#") { "#}" } else { "%}" };
        let Some(length) = rest.find(end).map(|at| at + 2) else {
            break;
        };
        let (tag, after) = rest.split_at(length);
        let (before, word, behind) = bare_tag(&tag[2..length - 2]);
        match word {
            "generation" if end == "%}" => {
                out.push_str(&format!(
                    "{{%{before} with %}}{{% filter __generation {behind}%}}"
                ));
            }
            "endgeneration" if end == "%}" => {
                out.push_str(&format!("{{%{before} endfilter %}}{{% endwith {behind}%}}"));
            }
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

fn raise(message: String) -> Result<Value, Error> {
    Err(Error::new(
        ErrorKind::InvalidOperation,
        format!("{RAISED}{message}"),
    ))
}

/// Calls a Python string method: blanks are Python's, the rest is from minijinja-contrib.
fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    if let (Some(text), "strip" | "lstrip" | "rstrip") = (value.as_str(), name) {
        budget::charge(16 * text.len() as u64)?;
        let (chars,): (Option<Value>,) = from_args(args)?;
        let chars = chars.filter(|c| !c.is_none());
        let wanted: Option<Vec<char>> = chars
            .as_ref()
            .and_then(|c| c.as_str())
            .map(|c| c.chars().collect());
        let drop = |letter: char| match &wanted {
            Some(list) => list.contains(&letter),
            None => is_blank(letter),
        };
        return Ok(Value::from(match name {
            "strip" => text.trim_matches(drop),
            "lstrip" => text.trim_start_matches(drop),
            _ => text.trim_end_matches(drop),
        }));
    }
    ask_method(value, name, args)?;
    pycompat::unknown_method_callback(state, value, name, args)
}

fn trim(value: &Value, chars: Option<String>) -> Result<Value, Error> {
    budget::charge(16 * value.as_str().map_or(0, str::len) as u64)?;
    let text = to_str(value)?;
    Ok(Value::from(match chars {
        Some(chars) => text
            .trim_matches(|letter| chars.contains(letter))
            .to_owned(),
        None => text.trim_matches(is_blank).to_owned(),
    }))
}

/// Follows jinja2: a sequence has a length and an index operator. So has an undefined value.
fn is_sequence(value: &Value) -> bool {
    matches!(
        value.kind(),
        ValueKind::Seq | ValueKind::String | ValueKind::Map | ValueKind::Undefined
    )
}

fn is_iterable(value: &Value) -> bool {
    is_sequence(value) || value.kind() == ValueKind::Iterable
}

impl Chat {
    pub fn new(source: &str, names: &Map<String, Json>, date: &str) -> Result<Chat, Failure> {
        let date = Date::parse(date)?;
        let source = source.replace("\r\n", "\n").replace('\r', "\n");
        let rewritten = rewrite_generation(&source);
        let mut environment = Environment::new();
        let mut syntax = SyntaxConfig::builder();
        syntax.trim_blocks(true).lstrip_blocks(true);
        let syntax = syntax.build()?;
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_fuel(Some(FUEL));
        environment.set_recursion_limit(100);
        environment.set_unknown_method_callback(method);
        environment.set_formatter(|out, _, value| format(out, value));
        add_guarded(&mut environment);
        environment.add_filter("tojson", to_json);
        environment.add_filter("trim", trim);
        environment.add_filter("string", to_str);
        environment.add_filter(
            "__generation",
            |state: &mut State, value: String| -> Result<String, Error> {
                budget::need_text(value.len() as u64)?;
                let mark = |name: &str| {
                    let found = state.lookup(name);
                    found.and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default()
                };
                Ok(format!("{}{value}{}", mark("__begin"), mark("__end")))
            },
        );
        environment.add_test("sequence", |value: &Value| is_sequence(value));
        environment.add_test("iterable", |value: &Value| is_iterable(value));
        environment.add_function("raise_exception", raise);
        environment.add_function("strftime_now", move |format: String| {
            // The longest name of a month or a day has nine letters.
            budget::need_text(9 * format.len() as u64)?;
            date.strftime(&format)
        });
        budget::begin();
        Ok(Chat {
            program: Program::new(rewritten, syntax)?,
            environment,
            constants: names.clone(),
            uses_date: source.contains("strftime_now("),
            source,
        })
    }

    /// `variables` is a JSON object with messages, tools, add_generation_prompt and so on.
    pub fn render(&self, variables: &str) -> Result<Rendered, Failure> {
        budget::begin();
        let given: Map<String, Json> = serde_json::from_str(variables)?;
        let unused = |mark: char| !self.source.contains(mark) && !variables.contains(mark);
        let (begin, end) = MARKS
            .into_iter()
            .find(|(begin, end)| unused(*begin) && unused(*end))
            .ok_or("the conversation holds too many noncharacters (U+FDD0 and following)")?;
        let mut context = self.constants.clone();
        context.extend(given);
        for name in ["tools", "documents"] {
            context.entry(name).or_insert(Json::Null);
        }
        context.insert("__begin".into(), begin.to_string().into());
        context.insert("__end".into(), end.to_string().into());
        let marked = self.run(from_json(&Json::Object(context))).map_err(explain)?;
        Ok(take_marks(&marked, begin, end))
    }

    fn run(&self, context: Value) -> Result<String, Error> {
        let mut text = String::new();
        let mut out = make_string_output(&mut text);
        let Program { main, blocks, .. } = &self.program;
        eval(&self.environment, main, context, blocks, &mut out, AutoEscape::None)?;
        drop(out);
        budget::need_text(text.len() as u64)?;
        Ok(text)
    }
}

/// Removes minijinja's text around the message that a template raised.
fn explain(error: Error) -> Failure {
    let mut source: Option<&dyn std::error::Error> = Some(&error);
    while let Some(inner) = source {
        if let Some(detail) = inner.downcast_ref::<Error>().and_then(Error::detail) {
            if let Some(at) = detail.find(RAISED) {
                return detail[at..].to_owned().into();
            }
        }
        source = inner.source();
    }
    if error.kind() == ErrorKind::OutOfFuel {
        return "the chat template does not come to an end".into();
    }
    error.to_string().into()
}

fn take_marks(marked: &str, begin: char, end: char) -> Rendered {
    let mut text = String::with_capacity(marked.len());
    let mut generated = Vec::new();
    for letter in marked.chars() {
        if letter == begin || letter == end {
            generated.push(text.len());
        } else {
            text.push(letter);
        }
    }
    Rendered { text, generated }
}
