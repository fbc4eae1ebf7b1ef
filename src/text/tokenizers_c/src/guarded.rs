//! Operators, filters, tests, functions and methods of chat templates within a budget. Each asks
//! before it allocates. Values are never lazy, so they do not nest deeper unnoticed.

use crate::budget::{charge, check_depth, measure, need, need_items, need_text, print, MAX_TEXT};
use crate::python::to_str;
use minijinja::machinery::{tokenize, Instruction, Instructions, Token};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Rest, Tuple, Value, ValueKind, ValueOrKwargs};
use minijinja::{filters, functions, tests, Environment, Error, ErrorKind, Output, State};

const ASK_COMPARISON: &str = "__ask_comparison";
const ASK_SUM: &str = "__ask_sum";
const ASK_PRODUCT: &str = "__ask_product";
const CONCAT: &str = "__concat";
const SLICE: &str = "__slice";
const WHOLE: &str = "__whole";
const BUILT: &str = "__built";
/// The limit of parts per expression; each may take a few hundred bytes of stack.
const MAX_PARTS: usize = 2000;
/// The filter has no slot in the interpreter's cache.
const NOT_KEPT: u8 = !0;

fn text_bytes(value: &Value) -> u64 {
    value.as_str().map_or(0, str::len) as u64
}

fn is_list(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable)
}

fn wrong(what: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, what.to_owned())
}

/// Replaces an iterator by a list of its items.
fn whole(value: Value) -> Result<Value, Error> {
    if value.kind() != ValueKind::Iterable {
        return Ok(value);
    }
    let mut items = Vec::new();
    for item in value.try_iter()? {
        if items.len() % 1024 == 0 {
            need_items(items.len() as u64 + 1024)?;
        }
        items.push(item);
    }
    Ok(Value::from(items))
}

/// Returns the greatest integer among positional and named arguments: a width or a count.
fn greatest_integer(args: &[Value]) -> u64 {
    let mut greatest = 0;
    for arg in args {
        if let Ok(number) = u64::try_from(arg.clone()) {
            greatest = greatest.max(number);
        } else if arg.kind() == ValueKind::Map {
            for key in arg.try_iter().into_iter().flatten() {
                let number = arg.get_item(&key).ok().and_then(|v| u64::try_from(v).ok());
                greatest = greatest.max(number.unwrap_or(0));
            }
        }
    }
    greatest
}

/// Returns the greatest number in a format string: a width or a precision.
fn greatest_width(format: &str) -> u64 {
    let runs = format.split(|letter: char| !letter.is_ascii_digit());
    let numbers = runs.filter(|run| !run.is_empty());
    numbers.map(|run| run.parse().unwrap_or(u64::MAX)).max().unwrap_or(0)
}

/// Asks for the result of a filter or method. The first argument is the value itself.
fn ask(name: &str, args: &[Value]) -> Result<(), Error> {
    let Some(value) = args.first() else {
        return Ok(());
    };
    let bytes = text_bytes(value);
    charge(args.iter().map(text_bytes).sum())?;
    match name {
        "default" | "d" | "first" | "last" | "length" | "count" | "bool" | "int" | "float" | "abs"
        | "round" | "attr" | "get" | "find" | "rfind" | "startswith" | "endswith" => Ok(()),
        "replace" => {
            let (from, to) = (args.get(1), args.get(2).map_or(0, text_bytes));
            let from = from.and_then(Value::as_str).unwrap_or_default();
            let hits = match value.as_str() {
                Some(text) if !from.is_empty() => text.matches(from).count() as u64,
                _ => bytes + 1,
            };
            need_text(bytes.saturating_add(hits.saturating_mul(to)))
        }
        "join" => {
            let extent = measure(args)?;
            let joiner: u64 = args.iter().map(text_bytes).sum();
            let between = extent.values.saturating_mul(joiner);
            need_text(extent.written(0).saturating_add(between))
        }
        "indent" => {
            let lines = value.as_str().map_or(0, |text| text.split('\n').count()) as u64;
            need_text(bytes.saturating_add(lines.saturating_mul(greatest_integer(&args[1..]))))
        }
        "format" => {
            let format = value.as_str().unwrap_or_default();
            let places = format.matches(['{', '%']).count() as u64;
            let widest = greatest_width(format).max(greatest_integer(&args[1..]));
            let each = measure(&args[1..])?.written(0).saturating_add(widest);
            need_text(bytes.saturating_add(places.saturating_mul(each)))
        }
        "batch" | "slice" => {
            measure(args)?;
            need_items(greatest_integer(&args[1..]).saturating_add(bytes))
        }
        "list" | "split" | "lines" | "splitlines" | "sort" | "unique" | "map" | "select"
        | "reject" | "reverse"
            if bytes > 0 =>
        {
            need_items(bytes.saturating_mul(2))
        }
        "sum" => {
            let extent = measure(args)?;
            charge(extent.values.saturating_mul(extent.text))
        }
        "string" | "pprint" => need_text(measure(args)?.written(0)),
        _ if bytes > 0 => need_text(bytes.saturating_mul(3)),
        _ => {
            // Sorting compares each value about 20 times.
            let extent = measure(args)?;
            charge(extent.values.saturating_mul(20 * 30).saturating_add(extent.text))
        }
    }
}

/// Asks before a method runs.
pub fn ask_method(value: &Value, name: &str, args: &[Value]) -> Result<(), Error> {
    let mut all = Vec::with_capacity(args.len() + 1);
    all.push(value.clone());
    all.extend_from_slice(args);
    ask(name, &all)
}

fn concat(left: &Value, right: &Value) -> Result<Value, Error> {
    let part = |value: &Value| -> Result<String, Error> {
        match value.as_str() {
            Some(text) => Ok(text.to_owned()),
            None => to_str(value),
        }
    };
    need_text(text_bytes(left).saturating_add(text_bytes(right)))?;
    let (mut text, right) = (part(left)?, part(right)?);
    need_text(text.len() as u64 + right.len() as u64)?;
    text.push_str(&right);
    Ok(Value::from(text))
}

fn items_of(value: &Value) -> Result<Vec<Value>, Error> {
    need_items(value.len().unwrap_or(0) as u64)?;
    Ok(whole(value.clone())?.try_iter()?.collect())
}

fn list_like(value: &Value, items: Vec<Value>) -> Value {
    if value.is_tuple() {
        Value::from(Tuple::from(items))
    } else {
        Value::from(items)
    }
}

/// Asks before two values are added.
fn ask_sum(left: &Value, right: &Value) -> Result<(), Error> {
    if let (Some(left), Some(right)) = (left.as_str(), right.as_str()) {
        return need_text(left.len() as u64 + right.len() as u64);
    }
    if is_list(left) && is_list(right) {
        need_items((left.len().unwrap_or(0) + right.len().unwrap_or(0)) as u64)?;
    }
    Ok(())
}

/// Asks before a text or a list is repeated.
fn ask_product(left: &Value, right: &Value) -> Result<(), Error> {
    for (value, times) in [(left, right), (right, left)] {
        let times = u64::try_from(times.clone()).unwrap_or(0);
        if let Some(text) = value.as_str() {
            need_text((text.len() as u64).saturating_mul(times))?;
        } else if is_list(value) {
            need_items((value.len().unwrap_or(0) as u64).saturating_mul(times))?;
        }
    }
    Ok(())
}

/// Returns the indices that Python's `[start:stop:step]` selects from `count` items.
fn slice_indices(count: usize, bounds: &[Value]) -> Result<Vec<usize>, Error> {
    let bound = |value: &Value| -> Result<Option<i64>, Error> {
        if value.is_none() {
            return Ok(None);
        }
        let number = value.as_i64();
        number.map(Some).ok_or_else(|| wrong("a slice needs integers"))
    };
    let (start, stop) = (bound(&bounds[0])?, bound(&bounds[1])?);
    let step = bound(&bounds[2])?.unwrap_or(1);
    if step == 0 {
        return Err(wrong("cannot slice by step size of 0"));
    }
    let count = count as i64;
    let (least, most) = if step > 0 { (0, count) } else { (-1, count - 1) };
    let place = |value: Option<i64>, default: i64| match value {
        None => default,
        Some(at) if at < 0 => at.saturating_add(count).max(least),
        Some(at) => at.min(most),
    };
    let (mut at, end) = if step > 0 {
        (place(start, 0), place(stop, count))
    } else {
        (place(start, count - 1), place(stop, -1))
    };
    let mut indices = Vec::new();
    while (step > 0 && at < end) || (step < 0 && at > end) {
        indices.push(at as usize);
        at = at.saturating_add(step);
    }
    Ok(indices)
}

fn slice(value: &Value, bounds: &[Value]) -> Result<Value, Error> {
    if value.is_none() || value.is_undefined() {
        return Ok(Value::from(Vec::<Value>::new()));
    }
    if let Some(text) = value.as_str() {
        need(text.len() as u64 * 12)?;
        let letters: Vec<char> = text.chars().collect();
        let indices = slice_indices(letters.len(), bounds)?;
        return Ok(Value::from(
            indices.into_iter().map(|i| letters[i]).collect::<String>(),
        ));
    }
    if !is_list(value) {
        return Err(wrong(&format!(
            "value of type {} cannot be sliced",
            value.kind()
        )));
    }
    let items = items_of(value)?;
    let indices = slice_indices(items.len(), bounds)?;
    let taken = indices.into_iter().map(|i| items[i].clone()).collect();
    Ok(list_like(value, taken))
}

/// Asks before a comparison or a containment test.
fn ask_comparison(left: &Value, right: &Value) -> Result<(), Error> {
    let plain = |value: &Value| !is_list(value) && value.kind() != ValueKind::Map;
    if plain(left) && plain(right) {
        return charge(text_bytes(left) + text_bytes(right));
    }
    if plain(left) && right.kind() == ValueKind::Map {
        return Ok(());
    }
    measure(&[left.clone(), right.clone()]).map(|_| ())
}

/// Emits the operator with a call of `asker` before it. `asker` returns the two operands as a pair,
/// which is unpacked in their order.
fn ask_before<'a>(asker: &'a str, operator: &Instruction<'a>, out: &mut Vec<Instruction<'a>>) {
    out.push(Instruction::ApplyFilter(asker, Some(2), NOT_KEPT));
    out.push(Instruction::UnpackList(2));
    out.push(Instruction::Swap);
    out.push(operator.clone());
}

fn expand<'a>(at: u32, from: &Instructions<'a>, out: &mut Vec<Instruction<'a>>) {
    let Some(instruction) = from.get(at) else {
        return;
    };
    let before = if at > 0 { from.get(at - 1) } else { None };
    // Constants of the template are short.
    let with_constant = matches!(before, Some(Instruction::LoadConst(_)));
    let filter = |name, count| Instruction::ApplyFilter(name, Some(count), NOT_KEPT);
    match instruction {
        Instruction::EmitRaw(text) => {
            out.push(Instruction::LoadConst(Value::from(*text)));
            out.push(Instruction::Emit);
        }
        Instruction::StringConcat => out.push(filter(CONCAT, 2)),
        Instruction::Slice => out.push(filter(SLICE, 4)),
        Instruction::Add => {
            ask_before(ASK_SUM, instruction, out);
            out.push(filter(WHOLE, 1));
        }
        Instruction::Mul => {
            ask_before(ASK_PRODUCT, instruction, out);
            out.push(filter(WHOLE, 1));
        }
        Instruction::BuildList(_) | Instruction::BuildTuple(_) | Instruction::BuildMap(_) => {
            out.push(instruction.clone());
            out.push(filter(BUILT, 1));
        }
        Instruction::Eq
        | Instruction::Ne
        | Instruction::Gt
        | Instruction::Gte
        | Instruction::Lt
        | Instruction::Lte
        | Instruction::In
        | Instruction::CompareAndPreserve(_)
            if !with_constant =>
        {
            ask_before(ASK_COMPARISON, instruction, out);
        }
        other => out.push(other.clone()),
    }
}

/// Returns the instructions with guards inserted.
pub fn guard_instructions<'a>(from: &Instructions<'a>) -> Instructions<'a> {
    let mut places = Vec::new();
    let mut guarded = Vec::new();
    let mut origins = Vec::new();
    let mut at = 0;
    while from.get(at).is_some() {
        places.push(guarded.len() as u32);
        expand(at, from, &mut guarded);
        origins.resize(guarded.len(), at);
        at += 1;
    }
    places.push(guarded.len() as u32);
    let mut out = Instructions::new(from.name(), from.source());
    for (mut instruction, origin) in guarded.into_iter().zip(origins) {
        match &mut instruction {
            Instruction::Iterate(target)
            | Instruction::Jump(target)
            | Instruction::JumpIfFalse(target)
            | Instruction::JumpIfFalseOrPop(target)
            | Instruction::JumpIfTrueOrPop(target)
            | Instruction::BuildMacro(_, target, _) => *target = places[*target as usize],
            _ => {}
        }
        match (from.get_span(origin), from.get_line(origin)) {
            (Some(span), _) => out.add_with_span(instruction, span),
            (None, Some(line)) => out.add_with_line(instruction, line as u16),
            (None, None) => out.add(instruction),
        };
    }
    out
}

type Ask = fn(&Value, &Value) -> Result<(), Error>;

fn add_operators(environment: &mut Environment<'static>) {
    let asks: [(&'static str, Ask); 3] = [
        (ASK_COMPARISON, ask_comparison),
        (ASK_SUM, ask_sum),
        (ASK_PRODUCT, ask_product),
    ];
    for (name, ask) in asks {
        environment.add_filter(name, move |left: Value, right: Value| {
            ask(&left, &right).map(|()| Value::from(Tuple::from(vec![left, right])))
        });
    }
    environment.add_filter(CONCAT, |left: &Value, right: &Value| concat(left, right));
    environment.add_filter(SLICE, |value: &Value, bounds: Rest<Value>| slice(value, &bounds));
    environment.add_filter(WHOLE, whole);
    environment.add_filter(BUILT, |value: Value| -> Result<Value, Error> {
        check_depth(std::slice::from_ref(&value))?;
        Ok(value)
    });
}

fn add_filters(environment: &mut Environment<'static>) {
    macro_rules! guarded {
        ($($name:literal $filter:ident),* $(,)?) => {
            [$(($name, Value::from_function(filters::$filter))),*]
        };
    }
    let all = guarded![
        "abs" abs, "attr" attr, "batch" batch, "bool" bool, "capitalize" capitalize,
        "chain" chain, "count" length, "d" default, "default" default, "dictsort" dictsort,
        "e" escape, "escape" escape, "first" first, "float" float, "format" format,
        "groupby" groupby, "indent" indent, "int" int, "items" items, "join" join, "last" last,
        "length" length, "lines" lines, "list" list, "lower" lower, "map" map, "max" max,
        "min" min, "pprint" pprint, "reject" reject, "rejectattr" rejectattr, "replace" replace,
        "reverse" reverse, "round" round, "safe" safe, "select" select, "selectattr" selectattr,
        "slice" slice, "sort" sort, "split" split, "sum" sum, "title" title, "unique" unique,
        "upper" upper, "zip" zip,
    ];
    for (name, filter) in all {
        environment.add_filter(name, move |state: &mut State, args: Rest<ValueOrKwargs>| {
            let args = args.into_values();
            ask(name, &args)?;
            whole(filter.call(state, &args)?)
        });
    }
}

fn add_tests(environment: &mut Environment<'static>) {
    macro_rules! guarded {
        ($($name:literal $test:ident),* $(,)?) => {
            [$(($name, Value::from_function(tests::$test))),*]
        };
    }
    let all = guarded![
        "!=" is_ne, "<" is_lt, "<=" is_le, "==" is_eq, ">" is_gt, ">=" is_ge, "eq" is_eq,
        "endingwith" is_endingwith, "equalto" is_eq, "ge" is_ge, "greaterthan" is_gt, "gt" is_gt,
        "in" is_in, "le" is_le, "lessthan" is_lt, "lower" is_lower, "lt" is_lt, "ne" is_ne,
        "sameas" is_sameas, "startingwith" is_startingwith, "upper" is_upper,
    ];
    for (name, test) in all {
        environment.add_test(name, move |state: &mut State, args: Rest<ValueOrKwargs>| {
            let args = args.into_values();
            match args.as_slice() {
                [one] => charge(text_bytes(one))?,
                [left, right, ..] => ask_comparison(left, right)?,
                [] => {}
            }
            test.call(state, &args).map(|answer| answer.is_true())
        });
    }
}

fn add_functions(environment: &mut Environment<'static>) {
    let all = [
        ("dict", Value::from_function(functions::dict)),
        ("namespace", Value::from_function(functions::namespace)),
    ];
    for (name, function) in all {
        environment.add_function(name, move |state: &mut State, args: Rest<ValueOrKwargs>| {
            let args = args.into_values();
            check_depth(&args)?;
            function.call(state, &args)
        });
    }
    environment.remove_global("debug");
}

/// Registers all callables of templates, except Python's own methods.
pub fn add_guarded(environment: &mut Environment<'static>) {
    add_operators(environment);
    add_filters(environment);
    add_tests(environment);
    add_functions(environment);
}

/// Prints `{{ value }}`.
pub fn format(out: &mut Output, value: &Value) -> Result<(), Error> {
    let failed = |_| Error::new(ErrorKind::WriteFailure, "cannot write");
    if let Some(text) = value.as_str() {
        print(text.len() as u64)?;
        return out.write_str(text).map_err(failed);
    }
    let text = to_str(value)?;
    print(text.len() as u64)?;
    out.write_str(&text).map_err(failed)
}

/// Refuses sources whose compilation could exhaust stack or memory: very long expressions, very
/// many branches, and products of constants. The bytes of such a product are at most the texts and
/// lists of an expression times its integers.
pub fn check_source(source: &str, syntax: SyntaxConfig) -> Result<(), Error> {
    let (mut sum, mut literal, mut product, mut multiplied) = (0u64, 0u64, 1u64, false);
    let (mut parts, mut branches) = (0, 0);
    for token in tokenize(source, false, syntax) {
        // The parser reports invalid tokens with their position.
        let Ok((token, _)) = token else {
            return Ok(());
        };
        parts += 1;
        branches += usize::from(matches!(token, Token::Ident("elif")));
        if parts > MAX_PARTS || branches > MAX_PARTS {
            return Err(wrong(&format!(
                "an expression or a choice of more than {MAX_PARTS} parts"
            )));
        }
        match token {
            Token::VariableStart | Token::BlockStart => {
                (literal, product, multiplied) = (0, 1, false);
                parts = 0;
            }
            Token::Str(text) => literal += text.len() as u64,
            Token::String(text) => literal += text.len() as u64,
            Token::Comma | Token::BracketOpen | Token::ParenOpen => literal += 32,
            Token::Int(number) => product = product.saturating_mul(number.max(1)),
            Token::Mul => multiplied = true,
            Token::VariableEnd | Token::BlockEnd if multiplied => {
                sum = sum.saturating_add(literal.saturating_mul(product));
                if sum > MAX_TEXT {
                    return Err(wrong("constants are multiplied beyond every measure"));
                }
            }
            _ => {}
        }
    }
    Ok(())
}
