//! Chat templates as transformers renders them: its Jinja environment over minijinja, and the parts
//! of the text that `{% generation %}` blocks made.

use crate::guard::Failure;
use crate::python::{from_json, is_blank, to_json, to_str, Date};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{from_args, Value, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State};
use minijinja_contrib::pycompat;
use serde_json::{Map, Value as Json};

const NAME: &str = "chat template";
/// Instructions of one rendering: stops templates that loop without end.
const FUEL: u64 = 50_000_000;
/// Starts the text of an error that the template itself raised.
const RAISED: &str = "the chat template says: ";
/// Where generated parts begin and end while a text is rendered: noncharacters of Unicode. A pair
/// is taken that occurs in neither template nor conversation.
const MARKS: [(char, char); 4] = [
    ('\u{fdd0}', '\u{fdd1}'),
    ('\u{fdd2}', '\u{fdd3}'),
    ('\u{fdd4}', '\u{fdd5}'),
    ('\u{fdd6}', '\u{fdd7}'),
];

pub struct Chat {
    environment: Environment<'static>,
    source: String,
    constants: Map<String, Json>,
    pub has_generation: bool,
    pub uses_date: bool,
}

/// Byte ranges of the text that generation blocks made, in order.
pub struct Rendered {
    pub text: String,
    pub generated: Vec<usize>,
}

/// The tag's word, where `tag` is what stands between "{%" and "%}", and its whitespace control.
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

fn first_of(text: &str, words: [&str; 2]) -> Option<usize> {
    words.iter().filter_map(|word| text.find(word)).min()
}

/// `{% generation %}` blocks as what minijinja knows: a filter that marks its body, in a scope of
/// its own.
fn rewrite_generation(source: &str) -> (String, bool) {
    let mut out = String::with_capacity(source.len() + 64);
    let (mut rest, mut found) = (source, false);
    while let Some(open) = first_of(rest, ["{%", "{#"]) {
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
                found = true;
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
    (out, found)
}

fn raise(message: String) -> Result<Value, Error> {
    Err(Error::new(
        ErrorKind::InvalidOperation,
        format!("{RAISED}{message}"),
    ))
}

/// Python's string methods: blanks as Python knows them, the rest by minijinja-contrib.
fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    if let (Some(text), "strip" | "lstrip" | "rstrip") = (value.as_str(), name) {
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
    pycompat::unknown_method_callback(state, value, name, args)
}

fn trim(value: &Value, chars: Option<String>) -> Result<Value, Error> {
    let text = to_str(value)?;
    Ok(Value::from(match chars {
        Some(chars) => text
            .trim_matches(|letter| chars.contains(letter))
            .to_owned(),
        None => text.trim_matches(is_blank).to_owned(),
    }))
}

/// jinja2: whatever has a length and can be indexed, which an undefined value does too.
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
        let (rewritten, has_generation) = rewrite_generation(&source);
        let mut environment = Environment::new();
        let mut syntax = SyntaxConfig::builder();
        syntax.trim_blocks(true).lstrip_blocks(true);
        environment.set_syntax(syntax.build()?);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_fuel(Some(FUEL));
        environment.set_recursion_limit(100);
        environment.set_unknown_method_callback(method);
        environment.set_formatter(|out, _, value| {
            out.write_str(&to_str(value)?)
                .map_err(|_| Error::new(ErrorKind::WriteFailure, "cannot write"))
        });
        environment.add_filter("tojson", to_json);
        environment.add_filter("trim", trim);
        environment.add_filter("string", |value: &Value| to_str(value));
        environment.add_filter(
            "__generation",
            |state: &mut State, value: String| -> Result<String, Error> {
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
        environment.add_function("strftime_now", move |format: String| date.strftime(&format));
        environment.add_template_owned(NAME, rewritten)?;
        Ok(Chat {
            environment,
            constants: names.clone(),
            has_generation,
            uses_date: source.contains("strftime_now("),
            source,
        })
    }

    /// `variables`: messages, tools, add_generation_prompt and what else the template may read.
    pub fn render(&self, variables: &str) -> Result<Rendered, Failure> {
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
        let template = self.environment.get_template(NAME)?;
        let marked = template
            .render(from_json(&Json::Object(context)))
            .map_err(explain)?;
        Ok(take_marks(&marked, begin, end))
    }
}

/// The message without minijinja's words around what a template raised.
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
