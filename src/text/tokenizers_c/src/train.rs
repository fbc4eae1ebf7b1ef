//! Trains a byte-level BPE tokenizer as the Python package's BpeTrainer does with a ByteLevel
//! pre-tokenizer.

use crate::pieces::{too_long, MAX_WHOLE};
use crate::Failure;
use ahash::AHashMap;
use compact_str::CompactString;
use tokenizers::models::bpe::{BpeTrainer, BpeTrainerBuilder, BPE};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::processors::template::TemplateProcessing;
use tokenizers::{
    AddedToken, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, Tokenizer,
};

const MAX_VOCABULARY: usize = 1 << 24;
/// The approximate bytes of the pieces in which documents are split into words.
const PIECE: usize = 32 << 10;
/// Training time grows with the length of a word times the size of the vocabulary.
const MAX_WORD: usize = 64 << 10;

/// Returns the end of the next piece: before a blank behind a letter, where the pre-tokenizer
/// always splits and never looks back.
fn end_of_piece(document: &str, begin: usize) -> Result<usize, Failure> {
    if document.len() - begin <= 2 * PIECE {
        return Ok(document.len());
    }
    let bytes = document.as_bytes();
    let is_cut = |at: &usize| {
        matches!(bytes[*at], b' ' | b'\n') && bytes[*at - 1].is_ascii_alphabetic()
    };
    let last = document.len().min(begin + MAX_WHOLE);
    match (begin + PIECE..last).find(is_cut) {
        Some(at) => Ok(at),
        None if last == document.len() => Ok(last),
        None => (begin + PIECE..last)
            .find(|at| document.is_char_boundary(*at) && is_blank_after_letter(document, *at))
            .ok_or_else(|| too_long(document.len() - begin)),
    }
}

fn is_blank_after_letter(document: &str, at: usize) -> bool {
    let letter = document[..at].chars().next_back();
    matches!(document.as_bytes()[at], b' ' | b'\n')
        && letter.is_some_and(|l| !l.is_whitespace() && !l.is_ascii())
}

pub struct Training {
    trainer: BpeTrainer,
    special_tokens: Vec<AddedToken>,
    splitter: ByteLevel,
    word_counts: AHashMap<CompactString, u64>,
}

impl Training {
    pub fn new(
        vocabulary_size: usize,
        min_frequency: u64,
        special_tokens: Vec<String>,
    ) -> Result<Self, Failure> {
        let least = 256 + special_tokens.len();
        if vocabulary_size < least {
            return Err(format!(
                "a vocabulary of {vocabulary_size} is too small: the bytes and \
                                special tokens alone are {least}"
            )
            .into());
        }
        if vocabulary_size > MAX_VOCABULARY {
            return Err(format!("a vocabulary of {vocabulary_size} is too large").into());
        }
        let special_tokens: Vec<AddedToken> = special_tokens
            .into_iter()
            .map(|token| AddedToken::from(token, true))
            .collect();
        let trainer = BpeTrainerBuilder::new()
            .show_progress(false)
            .vocab_size(vocabulary_size)
            .min_frequency(min_frequency)
            .special_tokens(special_tokens.clone())
            .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
            .build();
        Ok(Training {
            trainer,
            special_tokens,
            splitter: ByteLevel::new(false, true, true),
            word_counts: AHashMap::new(),
        })
    }

    pub fn feed(&mut self, document: &str) -> Result<(), Failure> {
        let mut begin = 0;
        while begin < document.len() {
            let end = end_of_piece(document, begin)?;
            self.feed_piece(&document[begin..end])?;
            begin = end;
        }
        Ok(())
    }

    fn feed_piece(&mut self, document: &str) -> Result<(), Failure> {
        let mut pieces = PreTokenizedString::from(document);
        self.splitter.pre_tokenize(&mut pieces)?;
        for (word, _, _) in pieces.get_splits(OffsetReferential::Original, OffsetType::None) {
            if word.len() > 2 * MAX_WORD {
                return Err(format!(
                    "a word of more than {} KiB: nothing is learned from text without blanks",
                    MAX_WORD >> 10
                )
                .into());
            }
            match self.word_counts.get_mut(word) {
                Some(count) => *count += 1,
                None => {
                    self.word_counts.insert(CompactString::from(word), 1);
                }
            }
        }
        Ok(())
    }

    pub fn finish(&self, prefix: &str) -> Result<String, Failure> {
        let mut model = BPE::default();
        let added = self.trainer.do_train(&self.word_counts, &mut model)?;
        let mut tokenizer = Tokenizer::new(model);
        tokenizer.add_special_tokens(added)?;
        tokenizer.with_pre_tokenizer(Some(self.splitter));
        tokenizer.with_decoder(Some(ByteLevel::default()));
        if !prefix.is_empty() {
            if !self
                .special_tokens
                .iter()
                .any(|token| token.content == prefix)
            {
                return Err(format!("'{prefix}' is not one of the special tokens").into());
            }
            let id = tokenizer
                .token_to_id(prefix)
                .ok_or("the prefix has no id")?;
            let template = TemplateProcessing::builder()
                .try_single(vec![prefix, "$A"])?
                .special_tokens(vec![(prefix.to_owned(), id)])
                .build()?;
            tokenizer.with_post_processor(Some(template));
        }
        tokenizer.to_string(true)
    }
}
