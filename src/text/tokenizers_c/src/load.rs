//! From the bytes of a model directory's files to a tokenizer: refuses what could exhaust memory or
//! tokenize at random, then applies tokenizer_config.json as transformers 5 does.

use crate::guard::{attempt, Failure};
use crate::pieces::Cuts;
use crate::special::{Configs, SpecialIds};
use serde_json::{json, Map, Value};
use tokenizers::{AddedToken, ModelWrapper, Tokenizer};

/// Real files stay below 10 levels; parsing recurses.
const MAX_DEPTH: usize = 32;
/// Ids are signed 32-bit numbers in data files.
const MAX_ID: u32 = i32::MAX as u32 - 1;
/// How much longer than its input a text may become by replacements, one after the other.
const MAX_GROWTH: usize = 1 << 12;

pub struct Loaded {
    pub tokenizer: Tokenizer,
    pub special: SpecialIds,
    pub vocabulary_size: usize,
    pub id_limit: i64,
    /// What chat templates know as bos_token and so on.
    pub token_names: Map<String, Value>,
    pub cuts: Cuts,
    /// What the post-processor puts before and behind every text.
    pub ends: Option<(Vec<u32>, Vec<u32>)>,
}

/// The ids around those of a text; None where the post-processor does more than that.
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

/// An object, or an empty one for an absent file.
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

/// The product of what each replacement in a chain can add.
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

fn check_tokenizer(tokenizer: &Tokenizer) -> Result<(), Failure> {
    let normalizer = serde_json::to_value(tokenizer.get_normalizer())?;
    let decoder = serde_json::to_value(tokenizer.get_decoder())?;
    if growth(&normalizer) > MAX_GROWTH || growth(&decoder) > MAX_GROWTH {
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
    Ok(())
}

/// transformers' LlamaTokenizer keeps only vocabulary, merges and post-processor of the file.
fn llama_rebuild(file: &mut Map<String, Value>, config: &Map<String, Value>) {
    let prefix = !matches!(config.get("add_prefix_space"), Some(Value::Bool(false)));
    let legacy = matches!(config.get("legacy"), Some(Value::Bool(true)));
    let scheme = match (prefix, legacy) {
        (false, _) => "never",
        (true, true) => "always",
        (true, false) => "first",
    };
    let mut decoders = vec![
        json!({"type": "Replace", "pattern": {"String": "\u{2581}"}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if prefix {
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    file.insert("normalizer".into(), Value::Null);
    file.insert(
        "pre_tokenizer".into(),
        json!({"type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": scheme,
               "split": false}),
    );
    file.insert(
        "decoder".into(),
        json!({"type": "Sequence", "decoders": decoders}),
    );
    if let Some(Value::Object(model)) = file.get_mut("model") {
        let vocabulary = model.remove("vocab").unwrap_or_default();
        let merges = model.remove("merges").unwrap_or_else(|| json!([]));
        *model = Map::new();
        model.insert("type".into(), "BPE".into());
        model.insert("fuse_unk".into(), true.into());
        model.insert("byte_fallback".into(), true.into());
        model.insert("vocab".into(), vocabulary);
        model.insert("merges".into(), merges);
    }
}

/// The file's added tokens in the order of their ids; the rebuilt tokenizer starts without them.
fn take_added_tokens(file: &mut Map<String, Value>) -> Result<Vec<AddedToken>, Failure> {
    let mut tokens: Vec<(u64, AddedToken)> = Vec::new();
    if let Some(Value::Array(list)) = file.remove("added_tokens") {
        for value in list {
            let id = value
                .get("id")
                .and_then(Value::as_u64)
                .ok_or("an added token has no id")?;
            tokens.push((id, serde_json::from_value(value)?));
        }
    }
    tokens.sort_by_key(|(id, _)| *id);
    Ok(tokens.into_iter().map(|(_, token)| token).collect())
}

fn is_llama_class(config: &Map<String, Value>) -> bool {
    matches!(
        config.get("tokenizer_class").and_then(Value::as_str),
        Some("LlamaTokenizer" | "LlamaTokenizerFast")
    )
}

fn mentions_byte_level(bytes: &[u8]) -> bool {
    let word = b"\"ByteLevel\"";
    bytes.windows(word.len()).any(|window| window == word)
}

/// The tokenizer of the file, and added tokens that are still to be put in.
fn parse_tokenizer(
    bytes: &[u8],
    config: &Map<String, Value>,
) -> Result<(Tokenizer, Vec<AddedToken>), Failure> {
    check_depth(bytes)?;
    if !is_llama_class(config) || mentions_byte_level(bytes) {
        return Ok((Tokenizer::from_bytes(bytes)?, Vec::new()));
    }
    let mut file = parse_object("tokenizer.json", bytes)?;
    let is_bpe = file.get("model").and_then(|m| m.get("merges")).is_some();
    if !is_bpe {
        return Ok((Tokenizer::from_bytes(bytes)?, Vec::new()));
    }
    llama_rebuild(&mut file, config);
    let added = take_added_tokens(&mut file)?;
    let text = serde_json::to_vec(&Value::Object(file))?;
    Ok((Tokenizer::from_bytes(&text)?, added))
}

fn add_default_names(config: &mut Map<String, Value>) {
    for (name, token) in [
        ("unk_token", "<unk>"),
        ("bos_token", "<s>"),
        ("eos_token", "</s>"),
    ] {
        config.entry(name).or_insert_with(|| token.into());
    }
}

/// Runs a part of the work; errors and panics start with the file's name.
fn in_file<T>(name: &str, body: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    attempt(body).map_err(|text| format!("{name}: {text}").into())
}

pub fn load(bytes: &[u8], mut configs: Configs) -> Result<Loaded, Failure> {
    let (mut tokenizer, added) = in_file("tokenizer.json", || {
        let (tokenizer, added) = parse_tokenizer(bytes, &configs.tokenizer)?;
        check_tokenizer(&tokenizer)?;
        Ok((tokenizer, added))
    })?;
    // Texts keep their lengths; all that is left of the padding is the token's name.
    if let Some(padding) = tokenizer.get_padding() {
        let token = Value::from(padding.pad_token.clone());
        configs.tokenizer.entry("pad_token").or_insert(token);
    }
    tokenizer.with_padding(None);
    tokenizer.with_truncation(None)?;
    if is_llama_class(&configs.tokenizer) && !mentions_byte_level(bytes) {
        add_default_names(&mut configs.tokenizer);
    }
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
        ends: special_ends(&tokenizer),
        tokenizer,
        token_names,
        special,
        vocabulary_size: vocabulary.len(),
        id_limit: i64::from(greatest) + 1,
    })
}
