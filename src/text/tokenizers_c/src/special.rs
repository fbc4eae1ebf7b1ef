//! Reads special tokens from tokenizer_config.json: the tokens added to tokenizer.json, and the ids
//! that begin, end and stop a text. Follows transformers 5.

use crate::Failure;
use serde_json::{Map, Value};
use tokenizers::{AddedToken, Tokenizer};

const NAMED: [&str; 7] = [
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
];

/// The files beside tokenizer.json; an absent file is an empty object.
pub struct Configs {
    pub tokenizer: Map<String, Value>,
    pub special_tokens_map: Map<String, Value>,
    pub generation: Map<String, Value>,
    pub model: Map<String, Value>,
}

pub struct SpecialIds {
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    pub pad: Option<u32>,
    pub stop: Vec<u32>,
}

fn flag(object: &Map<String, Value>, key: &str, default: bool) -> Result<bool, Failure> {
    match object.get(key) {
        None => Ok(default),
        Some(Value::Bool(value)) => Ok(*value),
        Some(_) => Err(format!("token flag '{key}' is not true or false").into()),
    }
}

/// Parses `{"content": ..., "lstrip": ...}` with Python's defaults.
fn token_of_object(object: &Map<String, Value>, special: bool) -> Result<AddedToken, Failure> {
    let content = object
        .get("content")
        .and_then(Value::as_str)
        .ok_or("a token object has no string 'content'")?;
    let special = special || flag(object, "special", false)?;
    Ok(AddedToken {
        content: content.to_owned(),
        single_word: flag(object, "single_word", false)?,
        lstrip: flag(object, "lstrip", false)?,
        rstrip: flag(object, "rstrip", false)?,
        normalized: flag(object, "normalized", !special)?,
        special,
    })
}

/// Parses a named token, a string or an object; returns None for null and other values.
fn named_token(value: &Value) -> Result<Option<AddedToken>, Failure> {
    match value {
        Value::String(text) => Ok(Some(AddedToken::from(text.clone(), true))),
        Value::Object(object) if object.contains_key("content") => {
            Ok(Some(token_of_object(object, true)?))
        }
        _ => Ok(None),
    }
}

fn tokens_by_id(table: &Map<String, Value>) -> Result<Vec<AddedToken>, Failure> {
    let mut tokens = Vec::with_capacity(table.len());
    for (key, value) in table {
        let id: u32 = key
            .parse()
            .map_err(|_| format!("added_tokens_decoder: bad id '{key}'"))?;
        let object = value
            .as_object()
            .ok_or("added_tokens_decoder: a token is not an object")?;
        tokens.push((id, token_of_object(object, false)?));
    }
    tokens.sort_by_key(|(id, _)| *id);
    Ok(tokens.into_iter().map(|(_, token)| token).collect())
}

impl Configs {
    fn has_decoder(&self) -> bool {
        self.tokenizer
            .get("added_tokens_decoder")
            .is_some_and(Value::is_object)
    }

    /// Returns the value of a key. The older special_tokens_map.json is used only if there is no
    /// added_tokens_decoder, and then takes precedence.
    fn value(&self, key: &str) -> Option<&Value> {
        let map = if self.has_decoder() {
            None
        } else {
            self.special_tokens_map.get(key)
        };
        map.or_else(|| self.tokenizer.get(key))
    }

    /// Returns every named special token, the seven standard names first.
    fn named(&self) -> Result<Vec<AddedToken>, Failure> {
        let mut tokens = Vec::new();
        for name in NAMED {
            tokens.extend(self.value(name).map(named_token).transpose()?.flatten());
        }
        for (key, value) in &self.tokenizer {
            if key.ends_with("_token") && !NAMED.contains(&key.as_str()) {
                tokens.extend(named_token(value)?);
            }
        }
        Ok(tokens)
    }

    /// Returns the texts of the tokens that have one of the seven standard names.
    pub fn token_names(&self) -> Map<String, Value> {
        let mut names = Map::new();
        for name in NAMED {
            let token = self.value(name).map(named_token);
            if let Some(Ok(Some(token))) = token {
                names.insert(name.to_owned(), token.content.into());
            }
        }
        names
    }

    fn extra(&self) -> Result<Vec<AddedToken>, Failure> {
        let mut tokens = Vec::new();
        for key in ["extra_special_tokens", "additional_special_tokens"] {
            match self.value(key) {
                Some(Value::Array(list)) => {
                    for value in list {
                        tokens.extend(named_token(value)?);
                    }
                }
                Some(Value::Object(table)) => {
                    for value in table.values() {
                        tokens.extend(named_token(value)?);
                    }
                }
                _ => {}
            }
            if !tokens.is_empty() {
                break;
            }
        }
        Ok(tokens)
    }

    /// Adds the configured tokens: first those of added_tokens_decoder (`fallback` if it is
    /// absent), then missing named and extra special tokens.
    pub fn add_tokens(
        &self,
        tokenizer: &mut Tokenizer,
        fallback: Vec<AddedToken>,
    ) -> Result<(), Failure> {
        let mut to_add = match self.tokenizer.get("added_tokens_decoder") {
            Some(Value::Object(table)) => tokens_by_id(table)?,
            Some(Value::Null) | None => fallback,
            Some(_) => return Err("added_tokens_decoder is not an object".into()),
        };
        let named = self.named()?;
        for token in &mut to_add {
            token.special |= named.iter().any(|other| other.content == token.content);
        }
        for token in named.into_iter().chain(self.extra()?) {
            let known = tokenizer
                .get_added_vocabulary()
                .get_vocab()
                .contains_key(&token.content);
            if !known && !to_add.iter().any(|other| other.content == token.content) {
                to_add.push(token);
            }
        }
        tokenizer.add_tokens(to_add)?;
        if let Some(Value::Bool(split)) = self.tokenizer.get("split_special_tokens") {
            tokenizer.set_encode_special_tokens(*split);
        }
        Ok(())
    }

    fn named_id(&self, tokenizer: &Tokenizer, name: &str) -> Option<u32> {
        let token = named_token(self.value(name)?).ok()??;
        tokenizer.token_to_id(&token.content)
    }

    /// Returns the ids that begin, end, pad and stop a text. An unnamed eos comes from
    /// generation_config.json or config.json; so does bos if no tokenizer configuration exists.
    pub fn special_ids(&self, tokenizer: &Tokenizer) -> SpecialIds {
        let numbers = |config: &Map<String, Value>, key: &str| -> Vec<u32> {
            let listed: Vec<&Value> = match config.get(key) {
                Some(Value::Array(list)) => list.iter().collect(),
                Some(value) => vec![value],
                None => Vec::new(),
            };
            let ids = listed
                .into_iter()
                .filter_map(|v| u32::try_from(v.as_u64()?).ok());
            ids.filter(|id| tokenizer.id_to_token(*id).is_some())
                .collect()
        };
        let numbered = |key: &str| -> Option<u32> {
            let generation = numbers(&self.generation, key);
            generation
                .first()
                .copied()
                .or_else(|| numbers(&self.model, key).first().copied())
        };
        let unnamed = self.tokenizer.is_empty() && self.special_tokens_map.is_empty();
        let eos = self
            .named_id(tokenizer, "eos_token")
            .or_else(|| numbered("eos_token_id"));
        let mut stop: Vec<u32> = eos.into_iter().collect();
        stop.extend(numbers(&self.generation, "eos_token_id"));
        stop.sort_unstable();
        stop.dedup();
        SpecialIds {
            bos: self.named_id(tokenizer, "bos_token").or_else(|| {
                if unnamed {
                    numbered("bos_token_id")
                } else {
                    None
                }
            }),
            eos,
            pad: self.named_id(tokenizer, "pad_token"),
            stop,
        }
    }
}
