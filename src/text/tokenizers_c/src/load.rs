//! Builds a tokenizer from the files of a model directory. Refuses files that could exhaust memory
//! or tokenize at random; then applies tokenizer_config.json as transformers 5 does.

use crate::classes::{add_default_names, class_of, reading_of, rebuild, Class};
use crate::pieces::Cuts;
use crate::special::{Configs, SpecialIds};
use crate::spelled::Spelled;
use crate::{attempt, Failure};
use serde_json::{Map, Value};
use tokenizers::{AddedToken, ModelWrapper, Tokenizer};

/// Real files stay below 10 levels; the parser is recursive.
const MAX_DEPTH: usize = 32;
/// Data files store ids as signed 32-bit numbers.
const MAX_ID: u32 = i32::MAX as u32 - 1;
/// The largest factor by which a chain of replacements may lengthen a text.
const MAX_GROWTH: usize = 1 << 12;
/// The most bytes that the normalizer's replacements may make of a piece of a text. The library
/// keeps 16 bytes more for each of them. No real chain makes more of the longest piece.
const MAX_NORMALIZED: usize = 16 << 20;

pub struct Loaded {
    pub tokenizer: Tokenizer,
    pub special: SpecialIds,
    pub vocabulary_size: usize,
    pub id_limit: i64,
    /// The special tokens by their names in chat templates, such as bos_token.
    pub token_names: Map<String, Value>,
    pub cuts: Cuts,
    pub spelled: Spelled,
    /// The ids that the post-processor adds before and behind every text; None if it does more.
    pub ends: Option<(Vec<u32>, Vec<u32>)>,
    pub reading: u32,
    /// The factor by which the normalizer's replacements may lengthen a text.
    pub growth: usize,
}

impl Loaded {
    /// Fails if the replacements could make more of the text than memory is planned for.
    pub fn check_length(&self, text: &str) -> Result<(), Failure> {
        if self.growth == 1 || text.len().saturating_mul(self.growth) <= MAX_NORMALIZED {
            return Ok(());
        }
        Err(format!(
            "the normalizer of tokenizer.json can make a text of {} bytes {} times longer, which \
             is more than {} MiB; split the text",
            text.len(),
            self.growth,
            MAX_NORMALIZED >> 20
        )
        .into())
    }
}

/// Returns the ids added around a text; None if the post-processor does more than add them.
fn special_ends(tokenizer: &Tokenizer) -> Option<(Vec<u32>, Vec<u32>)> {
    let ends_of = |text: &str| {
        let plain = tokenizer.encode_fast(text, false).ok()?.get_ids().to_vec();
        let whole = tokenizer.encode_fast(text, true).ok()?.get_ids().to_vec();
        if plain.is_empty() {
            return None;
        }
        let at = whole.windows(plain.len()).position(|window| window == plain)?;
        Some((whole[..at].to_vec(), whole[at + plain.len()..].to_vec()))
    };
    let ends = ends_of("Once upon a time, 3 words.")?;
    (ends_of("x = 1;") == Some(ends.clone())).then_some(ends)
}

fn check_depth(bytes: &[u8]) -> Result<(), Failure> {
    let (mut depth, mut in_string, mut escaped) = (0usize, false, false);
    for byte in bytes {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'{' | b'[' if !in_string => depth += 1,
            b'}' | b']' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MAX_DEPTH {
            return Err(format!("nested deeper than {MAX_DEPTH} levels").into());
        }
    }
    Ok(())
}

/// Parses a JSON object; an absent file gives an empty one.
pub fn parse_object(name: &str, bytes: &[u8]) -> Result<Map<String, Value>, Failure> {
    if bytes.is_empty() {
        return Ok(Map::new());
    }
    check_depth(bytes).map_err(|e| format!("{name}: {e}"))?;
    match serde_json::from_slice(bytes) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(format!("{name}: not a JSON object").into()),
        Err(e) => Err(format!("{name}: {e}").into()),
    }
}

/// Returns the product of the lengths that each replacement in a chain can add.
fn growth(value: &Value) -> usize {
    match value {
        Value::Array(list) => list
            .iter()
            .fold(1, |product, item| product.saturating_mul(growth(item))),
        Value::Object(object) => {
            let own = match object.get("content").and_then(Value::as_str) {
                Some(content) if object.contains_key("pattern") => content.len().max(1),
                _ => 1,
            };
            object
                .values()
                .fold(own, |product, item| product.saturating_mul(growth(item)))
        }
        _ => 1,
    }
}

/// Returns the growth of the normalizer.
fn check_tokenizer(tokenizer: &Tokenizer) -> Result<usize, Failure> {
    let normalizer = growth(&serde_json::to_value(tokenizer.get_normalizer())?);
    let decoder = growth(&serde_json::to_value(tokenizer.get_decoder())?);
    if normalizer > MAX_GROWTH || decoder > MAX_GROWTH {
        return Err(format!("its replacements can make a text {MAX_GROWTH} times longer").into());
    }
    if let ModelWrapper::BPE(bpe) = tokenizer.get_model() {
        if bpe.dropout.is_some_and(|p| p > 0.0) {
            return Err(
                "model.dropout is set: the same text would give other tokens each time; \
                        set it to null"
                    .into(),
            );
        }
    }
    Ok(normalizer)
}

/// Returns the tokenizer as the class reads the file, added tokens that are still to be inserted,
/// and whether the class changed the file.
fn parse_tokenizer(
    bytes: &[u8],
    class: Class,
    config: &Map<String, Value>,
) -> Result<(Tokenizer, Vec<AddedToken>, bool), Failure> {
    check_depth(bytes)?;
    if class != Class::File {
        let file = parse_object("tokenizer.json", bytes)?;
        if let Some((tokenizer, added)) = rebuild(class, file, config)? {
            return Ok((tokenizer, added, true));
        }
    }
    Ok((Tokenizer::from_bytes(bytes)?, Vec::new(), false))
}

/// Runs `body`; errors and panics start with the file's name.
fn in_file<T>(name: &str, body: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    attempt(body).map_err(|text| format!("{name}: {text}").into())
}

pub fn load(bytes: &[u8], mut configs: Configs) -> Result<Loaded, Failure> {
    let class = class_of(&configs, bytes);
    let ((mut tokenizer, added, rebuilt), growth) = in_file("tokenizer.json", || {
        let parsed = parse_tokenizer(bytes, class, &configs.tokenizer)?;
        let growth = check_tokenizer(&parsed.0)?;
        Ok((parsed, growth))
    })?;
    let reading = reading_of(class, rebuilt, &configs, bytes);
    // Texts are not padded; only the name of the padding token is used.
    if let Some(padding) = tokenizer.get_padding() {
        let token = Value::from(padding.pad_token.clone());
        configs.tokenizer.entry("pad_token").or_insert(token);
    }
    tokenizer.with_padding(None);
    tokenizer.with_truncation(None)?;
    add_default_names(class, &mut configs.tokenizer);
    in_file("tokenizer_config.json", || {
        configs.add_tokens(&mut tokenizer, added)
    })?;

    let vocabulary = tokenizer.get_vocab(true);
    let greatest = vocabulary.values().copied().max();
    let greatest = greatest.ok_or("tokenizer.json: the vocabulary is empty")?;
    if greatest > MAX_ID {
        return Err(format!("tokenizer.json: token id {greatest} is too large").into());
    }
    let special = configs.special_ids(&tokenizer);
    let token_names = configs.token_names();
    Ok(Loaded {
        cuts: Cuts::new(&tokenizer),
        spelled: Spelled::new(&tokenizer),
        ends: special_ends(&tokenizer),
        reading,
        growth,
        tokenizer,
        token_names,
        special,
        vocabulary_size: vocabulary.len(),
        id_limit: i64::from(greatest) + 1,
    })
}
