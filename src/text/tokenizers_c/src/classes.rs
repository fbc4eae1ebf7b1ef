//! The tokenizer class that transformers 5 selects for a model directory. Some classes use only
//! vocabulary, merges and post-processor of tokenizer.json, and replace its normalizer,
//! pre-tokenizer and decoder.

use crate::special::Configs;
use crate::Failure;
use serde_json::{json, Map, Value};
use tokenizers::{AddedToken, DecoderWrapper, NormalizerWrapper, PreTokenizerWrapper, Tokenizer};

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Class {
    /// Uses the file unchanged.
    File,
    Llama,
    Gemma,
    Qwen2,
    Qwen35,
    Gpt2,
}

const QWEN2: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
);
const QWEN35: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}",
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

fn mentions_byte_level(bytes: &[u8]) -> bool {
    let word = b"\"ByteLevel\"";
    bytes.windows(word.len()).any(|window| window == word)
}

fn class_named(name: &str) -> Class {
    match name.strip_suffix("Fast").unwrap_or(name) {
        "LlamaTokenizer" => Class::Llama,
        "GemmaTokenizer" => Class::Gemma,
        "Qwen2Tokenizer" => Class::Qwen2,
        "Qwen3_5Tokenizer" => Class::Qwen35,
        "GPT2Tokenizer" => Class::Gpt2,
        _ => Class::File,
    }
}

/// Returns the class registered for a model type; only trainable types are known.
fn registered(model_type: &str) -> Option<Class> {
    match model_type {
        "gemma" | "gemma2" | "gemma3" | "gemma3_text" => Some(Class::Gemma),
        "qwen2" | "qwen3" | "qwen2_moe" | "qwen3_moe" | "qwen3_next" => Some(Class::Qwen2),
        "qwen3_5" | "qwen3_5_text" | "qwen3_5_moe" | "qwen3_5_moe_text" => Some(Class::Qwen35),
        "gpt2" | "starcoder2" => Some(Class::Gpt2),
        "mistral" | "mistral3" | "ministral" | "ministral3" | "mixtral" | "phi3" | "olmo2"
        | "olmo3" | "glm4" | "glm4_moe" | "granite" | "ernie4_5" => Some(Class::File),
        _ => None,
    }
}

/// Selects the class in the order of transformers. A registered class that uses the file unchanged
/// overrides the name in tokenizer_config.json. Other registered classes yield to that name, except
/// for model types whose directories name wrong classes (transformers lists them).
pub fn class_of(configs: &Configs, file: &[u8]) -> Class {
    let text = |config: &Map<String, Value>, key: &str| -> Option<String> {
        config.get(key).and_then(Value::as_str).map(str::to_owned)
    };
    let model_type = text(&configs.model, "model_type").unwrap_or_default();
    let registered = registered(&model_type);
    let name = text(&configs.tokenizer, "tokenizer_class")
        .or_else(|| text(&configs.model, "tokenizer_class"));
    let Some(name) = name else {
        return registered.unwrap_or(Class::File);
    };
    let named = class_named(&name);
    let class = match registered {
        Some(Class::File) => Class::File,
        Some(Class::Qwen2) if model_type == "qwen2" => Class::Qwen2,
        Some(Class::Qwen35) if model_type != "qwen3_5_text" => Class::Qwen35,
        _ => named,
    };
    // Llama's class has no byte-level part, so a byte-level file is used unchanged.
    if class == Class::Llama && mentions_byte_level(file) {
        return Class::File;
    }
    class
}

/// Returns a number that is part of the tokenizer's fingerprint, so data prepared with other tokens
/// is not reused. It is 0 if earlier versions read the directory in the same way; they knew only
/// the unchanged file and Llama's class.
pub fn reading_of(class: Class, rebuilt: bool, configs: &Configs, file: &[u8]) -> u32 {
    let name = configs.tokenizer.get("tokenizer_class").and_then(Value::as_str);
    let named_llama = name.is_some_and(|name| class_named(name) == Class::Llama);
    match class {
        Class::File => u32::from(named_llama && !mentions_byte_level(file)),
        Class::Llama => 0,
        _ if !rebuilt => 0,
        Class::Gemma => 2,
        Class::Qwen2 => 3,
        Class::Qwen35 => 4,
        Class::Gpt2 => 5,
    }
}

/// Adds the class's default names of special tokens that the configuration lacks.
pub fn add_default_names(class: Class, config: &mut Map<String, Value>) {
    let end = "<|endoftext|>";
    let names: &[(&str, &str)] = match class {
        Class::File => &[],
        Class::Llama => &[("unk_token", "<unk>"), ("bos_token", "<s>"), ("eos_token", "</s>")],
        Class::Gemma => &[
            ("unk_token", "<unk>"),
            ("bos_token", "<bos>"),
            ("eos_token", "<eos>"),
            ("pad_token", "<pad>"),
            ("mask_token", "<mask>"),
        ],
        Class::Qwen2 | Class::Qwen35 => {
            &[("unk_token", end), ("eos_token", end), ("pad_token", end)]
        }
        Class::Gpt2 => &[("unk_token", end), ("bos_token", end), ("eos_token", end)],
    };
    for (name, token) in names {
        config.entry(*name).or_insert_with(|| (*token).into());
    }
}

/// The parts that a class puts in place of the file's.
struct Parts {
    normalizer: Value,
    pre_tokenizer: Value,
    decoder: Value,
    model: Value,
}

fn llama(config: &Map<String, Value>) -> Parts {
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
    Parts {
        normalizer: Value::Null,
        pre_tokenizer: json!({"type": "Metaspace", "replacement": "\u{2581}",
                              "prepend_scheme": scheme, "split": false}),
        decoder: json!({"type": "Sequence", "decoders": decoders}),
        model: json!({"fuse_unk": true, "byte_fallback": true}),
    }
}

fn gemma(config: &Map<String, Value>) -> Parts {
    let unknown = match config.get("unk_token") {
        Some(Value::Object(token)) => token.get("content").cloned().unwrap_or_default(),
        Some(token) => token.clone(),
        None => "<unk>".into(),
    };
    Parts {
        normalizer: json!({"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"}),
        pre_tokenizer: json!({"type": "Split", "pattern": {"String": " "},
                              "behavior": "MergedWithPrevious", "invert": false}),
        decoder: json!({"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "\u{2581}"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"}]}),
        model: json!({"fuse_unk": true, "byte_fallback": true, "unk_token": unknown}),
    }
}

fn byte_level(config: &Map<String, Value>, use_regex: bool) -> Value {
    let prefix = matches!(config.get("add_prefix_space"), Some(Value::Bool(true)));
    json!({"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": true,
           "use_regex": use_regex})
}

fn parts_of(class: Class, config: &Map<String, Value>) -> Option<Parts> {
    let decoder = json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true,
                         "use_regex": true});
    match class {
        Class::File => None,
        Class::Llama => Some(llama(config)),
        Class::Gemma => Some(gemma(config)),
        Class::Gpt2 => Some(Parts {
            normalizer: Value::Null,
            pre_tokenizer: byte_level(config, true),
            decoder,
            model: json!({}),
        }),
        Class::Qwen2 | Class::Qwen35 => {
            let pattern = if class == Class::Qwen2 { QWEN2 } else { QWEN35 };
            let split = json!({"type": "Split", "pattern": {"Regex": pattern},
                               "behavior": "Isolated", "invert": false});
            Some(Parts {
                normalizer: json!({"type": "NFC"}),
                pre_tokenizer: json!({"type": "Sequence",
                                      "pretokenizers": [split, byte_level(config, false)]}),
                decoder,
                model: json!({}),
            })
        }
    }
}

/// Removes members that change no token: ByteLevel's offset options, and its options for decoding.
fn without_trimming(value: &mut Value, decodes: bool) {
    match value {
        Value::Array(list) => list.iter_mut().for_each(|item| without_trimming(item, decodes)),
        Value::Object(object) => {
            if object.get("type").is_some_and(|name| name == "ByteLevel") {
                object.retain(|key, _| key == "type" || (!decodes && key != "trim_offsets"));
            }
            object.values_mut().for_each(|item| without_trimming(item, decodes));
        }
        _ => {}
    }
}

/// Compares two parts in canonical form, so spelling does not matter.
macro_rules! alike {
    ($part:ty, $one:expr, $other:expr, $decodes:expr) => {{
        let canonical = |value: &Value| -> Option<Value> {
            let part: Option<$part> = serde_json::from_value(value.clone()).ok()?;
            let mut canonical = serde_json::to_value(part).ok()?;
            without_trimming(&mut canonical, $decodes);
            Some(canonical)
        };
        canonical($one) == canonical($other)
    }};
}

/// Returns true if the file's parts equal the class's own. Decoders count too, because generated
/// text is decoded.
fn same(file: &Map<String, Value>, parts: &Parts) -> bool {
    let own = |key: &str| file.get(key).unwrap_or(&Value::Null);
    let model = own("model");
    let flag = |value: &Value, key: &str| value.get(key).and_then(Value::as_bool) == Some(true);
    let word = |value: &Value, key: &str| -> String {
        value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let flags = ["fuse_unk", "byte_fallback", "ignore_merges"];
    let words = ["unk_token", "continuing_subword_prefix", "end_of_word_suffix"];
    alike!(NormalizerWrapper, own("normalizer"), &parts.normalizer, false)
        && alike!(PreTokenizerWrapper, own("pre_tokenizer"), &parts.pre_tokenizer, false)
        && alike!(DecoderWrapper, own("decoder"), &parts.decoder, true)
        && flags.iter().all(|key| flag(model, key) == flag(&parts.model, key))
        && words.iter().all(|key| word(model, key) == word(&parts.model, key))
}

/// Removes the file's added tokens, since the rebuilt tokenizer starts without them; sorted by id.
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

/// Returns the class's tokenizer and the added tokens still to be inserted; None if the file
/// already agrees with the class.
pub fn rebuild(
    class: Class,
    mut file: Map<String, Value>,
    config: &Map<String, Value>,
) -> Result<Option<(Tokenizer, Vec<AddedToken>)>, Failure> {
    let Some(parts) = parts_of(class, config) else {
        return Ok(None);
    };
    let is_bpe = file.get("model").and_then(|m| m.get("merges")).is_some();
    if !is_bpe || (class != Class::Llama && same(&file, &parts)) {
        return Ok(None);
    }
    file.insert("normalizer".into(), parts.normalizer);
    file.insert("pre_tokenizer".into(), parts.pre_tokenizer);
    file.insert("decoder".into(), parts.decoder);
    if let Some(Value::Object(model)) = file.get_mut("model") {
        let vocabulary = model.remove("vocab").unwrap_or_default();
        let merges = model.remove("merges").unwrap_or_else(|| json!([]));
        *model = Map::new();
        model.insert("type".into(), "BPE".into());
        if let Value::Object(options) = parts.model {
            model.extend(options);
        }
        model.insert("vocab".into(), vocabulary);
        model.insert("merges".into(), merges);
    }
    let added = take_added_tokens(&mut file)?;
    let text = serde_json::to_vec(&Value::Object(file))?;
    Ok(Some((Tokenizer::from_bytes(&text)?, added)))
}
