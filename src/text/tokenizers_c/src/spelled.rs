//! Special tokens that a text spells, such as "<|im_end|>" typed into a message: finds them, and
//! reads them as ordinary text instead of tokens.

use crate::Failure;
use std::sync::OnceLock;
use tokenizers::{AddedToken, Tokenizer};

/// These values say how a text is read; the C interface has the same.
pub const TOKENS: u32 = 0;
pub const TEXT_BEHIND_TOKEN: u32 = 2;

/// A noncharacter in the place of the special token before a text.
const STAND_IN: &str = "\u{fddb}";

pub struct Spelled {
    /// The special tokens at the index of their first byte, the longest first.
    tokens: Vec<Vec<(String, u32)>>,
    /// The tokenizer for texts whose special tokens are text; it is made at the first use.
    as_text: OnceLock<AsText>,
}

struct AsText {
    tokenizer: Tokenizer,
    /// Special tokens that are pieces of the model, too, and so cannot be read as text.
    pieces: Vec<String>,
}

impl Spelled {
    pub fn new(tokenizer: &Tokenizer) -> Spelled {
        let mut tokens: Vec<Vec<(String, u32)>> = vec![Vec::new(); 256];
        let added = tokenizer.get_added_vocabulary();
        let reads = !added.get_encode_special_tokens();
        for (id, token) in added.get_added_tokens_decoder() {
            let first = token.content.bytes().next();
            if let (true, true, Some(first)) = (reads, token.special, first) {
                tokens[usize::from(first)].push((token.content.clone(), *id));
            }
        }
        for list in &mut tokens {
            list.sort_by(|a, b| b.0.len().cmp(&a.0.len()).then(a.1.cmp(&b.1)));
        }
        Spelled {
            tokens,
            as_text: OnceLock::new(),
        }
    }

    /// Returns id, begin and end of each special token that the text spells.
    pub fn find(&self, text: &str) -> Vec<(u32, usize, usize)> {
        let bytes = text.as_bytes();
        let mut found = Vec::new();
        let mut at = 0;
        while at < bytes.len() {
            let mut tokens = self.tokens[usize::from(bytes[at])].iter();
            match tokens.find(|(token, _)| bytes[at..].starts_with(token.as_bytes())) {
                Some((token, id)) => {
                    found.push((*id, at, at + token.len()));
                    at += token.len();
                }
                None => at += 1,
            }
        }
        found
    }

    /// Returns the tokenizer for texts that are read as `reading` says.
    pub fn reader<'a>(
        &'a self,
        tokenizer: &'a Tokenizer,
        reading: u32,
    ) -> Result<&'a Tokenizer, Failure> {
        if reading == TOKENS {
            return Ok(tokenizer);
        }
        if let Some(ready) = self.as_text.get() {
            return Ok(&ready.tokenizer);
        }
        let mut made = tokenizer.clone();
        made.set_encode_special_tokens(true);
        made.add_tokens([AddedToken::from(STAND_IN, false).normalized(false)])?;
        let mut pieces = Vec::new();
        for (token, id) in self.tokens.iter().flatten() {
            if made.encode_fast(token.as_str(), false)?.get_ids().contains(id) {
                pieces.push(token.clone());
            }
        }
        let ready = AsText {
            tokenizer: made,
            pieces,
        };
        Ok(&self.as_text.get_or_init(|| ready).tokenizer)
    }

    /// Refuses a text with a special token that cannot be read as text.
    pub fn check_readable(&self, text: &str) -> Result<(), Failure> {
        let pieces = self.as_text.get().map_or(&[][..], |ready| &ready.pieces);
        match pieces.iter().find(|piece| text.contains(piece.as_str())) {
            Some(piece) => Err(format!(
                "the text spells the special token {piece}, which this tokenizer's model cannot \
                 read as ordinary text; remove it, or set data.special_tokens to \"keep\""
            )
            .into()),
            None => Ok(()),
        }
    }
}

/// Encodes a text that follows a special token, which matters to tokenizers that add a prefix to
/// the start of a text. Returns the ids and the begin and end of each.
pub fn encode_behind(tokenizer: &Tokenizer, text: &str) -> Result<(Vec<u32>, Vec<usize>), Failure> {
    let encoded = tokenizer.encode(format!("{STAND_IN}{text}"), false)?;
    let behind = |at: usize| at.saturating_sub(STAND_IN.len());
    let tokens = encoded.get_ids().iter().zip(encoded.get_offsets()).skip(1);
    let (ids, bounds): (Vec<u32>, Vec<[usize; 2]>) = tokens
        .map(|(id, (begin, end))| (*id, [behind(*begin), behind(*end)]))
        .unzip();
    Ok((ids, bounds.concat()))
}
