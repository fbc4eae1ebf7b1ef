//! The C interface of include/tokenizers_c.h. Every function that can fail runs under
//! `attempt`, so neither an error nor a panic of the libraries leaves it.

#![allow(clippy::missing_safety_doc)]

mod budget;
mod chat;
mod classes;
mod crossing;
mod guarded;
mod load;
mod pieces;
mod python;
mod special;
mod spelled;
mod train;

use c_interface::{Failure, OwnedString, Slice};
use chat::Chat;
use load::{load, parse_object, Loaded};
use special::Configs;
use tokenizers::{Encoding, PostProcessorWrapper, Tokenizer};
use train::Training;

const LIBRARY: &str = "tokenizers";

/// Runs `body` and returns its value, or the text of its error or panic.
fn attempt<T>(body: impl FnOnce() -> Result<T, Failure>) -> Result<T, String> {
    c_interface::attempt(LIBRARY, body)
}

/// Writes the value to `out` and returns 0, or writes the message to `error` and returns 1.
///
/// # Safety
/// `out` and `error` must be writable.
unsafe fn answer<T>(
    out: *mut T,
    error: *mut OwnedString,
    body: impl FnOnce() -> Result<T, Failure>,
) -> i32 {
    c_interface::answer(out, error, LIBRARY, body)
}

#[repr(C)]
pub struct Files {
    tokenizer: Slice,
    tokenizer_config: Slice,
    special_tokens_map: Slice,
    generation_config: Slice,
    model_config: Slice,
}

#[repr(C)]
pub struct EncodingOut {
    ids: *mut u32,
    bounds: *mut usize,
    count: usize,
}

#[repr(C)]
pub struct RenderedOut {
    text: OwnedString,
    generated: *mut usize,
    count: usize,
}

#[repr(C)]
pub struct Info {
    vocabulary_size: usize,
    id_limit: i64,
    bos: i64,
    eos: i64,
    pad: i64,
    stop_ids: *const u32,
    stop_count: usize,
    prefix_ids: *const u32,
    prefix_count: usize,
    suffix_ids: *const u32,
    suffix_count: usize,
    has_ends: i32,
    reading: u32,
    growth: usize,
}

fn leak<T>(values: Vec<T>) -> *mut T {
    Box::into_raw(values.into_boxed_slice()).cast()
}

unsafe fn unleak<T>(values: *mut T, count: usize) {
    if !values.is_null() {
        drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(
            values, count,
        )));
    }
}

#[no_mangle]
pub unsafe extern "C" fn tokc_string_free(text: OwnedString) {
    text.free();
}

#[no_mangle]
pub unsafe extern "C" fn tokc_encoding_free(encoding: EncodingOut) {
    unleak(encoding.ids, encoding.count);
    unleak(encoding.bounds, 2 * encoding.count);
}

#[no_mangle]
pub unsafe extern "C" fn tokc_load(
    files: *const Files,
    tokenizer: *mut *mut Loaded,
    error: *mut OwnedString,
) -> i32 {
    answer(tokenizer, error, || {
        let files = &*files;
        let configs = Configs {
            tokenizer: parse_object("tokenizer_config.json", files.tokenizer_config.bytes())?,
            special_tokens_map: parse_object(
                "special_tokens_map.json",
                files.special_tokens_map.bytes(),
            )?,
            generation: parse_object("generation_config.json", files.generation_config.bytes())?,
            model: parse_object("config.json", files.model_config.bytes())?,
        };
        Ok(Box::into_raw(Box::new(load(
            files.tokenizer.bytes(),
            configs,
        )?)))
    })
}

#[no_mangle]
pub unsafe extern "C" fn tokc_free(tokenizer: *mut Loaded) {
    if !tokenizer.is_null() {
        drop(Box::from_raw(tokenizer));
    }
}

#[no_mangle]
pub unsafe extern "C" fn tokc_describe(tokenizer: *const Loaded) -> Info {
    let loaded = &*tokenizer;
    let id = |value: Option<u32>| value.map_or(-1, i64::from);
    let none: &[u32] = &[];
    let (prefix, suffix) = match &loaded.ends {
        Some((prefix, suffix)) => (prefix.as_slice(), suffix.as_slice()),
        None => (none, none),
    };
    Info {
        vocabulary_size: loaded.vocabulary_size,
        id_limit: loaded.id_limit,
        bos: id(loaded.special.bos),
        eos: id(loaded.special.eos),
        pad: id(loaded.special.pad),
        stop_ids: loaded.special.stop.as_ptr(),
        stop_count: loaded.special.stop.len(),
        prefix_ids: prefix.as_ptr(),
        prefix_count: prefix.len(),
        suffix_ids: suffix.as_ptr(),
        suffix_count: suffix.len(),
        has_ends: i32::from(loaded.ends.is_some()),
        reading: loaded.reading,
        growth: loaded.growth,
    }
}

/// Writes to `end` where the piece of `text` that begins at `begin` ends.
#[no_mangle]
pub unsafe extern "C" fn tokc_piece_end(
    tokenizer: *const Loaded,
    text: Slice,
    begin: usize,
    reading: u32,
    end: *mut usize,
    error: *mut OwnedString,
) -> i32 {
    answer(end, error, || {
        let loaded = &*tokenizer;
        let text = text.known_text();
        let tokenizer = loaded.spelled.reader(&loaded.tokenizer, reading)?;
        loaded.cuts.end_of_piece(tokenizer, text, begin)
    })
}

/// Finds the special tokens that a text spells.
#[no_mangle]
pub unsafe extern "C" fn tokc_spelled(
    tokenizer: *const Loaded,
    text: Slice,
    encoding: *mut EncodingOut,
    error: *mut OwnedString,
) -> i32 {
    answer(encoding, error, || {
        let found = (*tokenizer).spelled.find(text.known_text());
        let ids: Vec<u32> = found.iter().map(|(id, _, _)| *id).collect();
        let bounds: Vec<usize> = found.iter().flat_map(|(_, begin, end)| [*begin, *end]).collect();
        Ok(EncodingOut {
            count: ids.len(),
            ids: leak(ids),
            bounds: leak(bounds),
        })
    })
}

/// ByteLevel treats a blank at the start of a text as its own added prefix and does not trim it. At
/// the start of a later piece the blank belongs to the text and must be trimmed.
fn trim_first(tokenizer: &Tokenizer, encoded: &Encoding, offsets: &mut [(usize, usize)]) {
    let Some(PostProcessorWrapper::ByteLevel(level)) = tokenizer.get_post_processor() else {
        return;
    };
    let token = encoded.get_tokens().first().map_or("", String::as_str);
    let blanks = token.chars().take_while(|c| *c == 'Ġ' || c.is_whitespace()).count();
    if !level.trim_offsets || !level.add_prefix_space || blanks != 1 || !token.starts_with('Ġ') {
        return;
    }
    let (start, end) = offsets[0];
    offsets[0] = ((start + 1).min(end.max(start + 1)), end.max(start + 1));
}

#[no_mangle]
pub unsafe extern "C" fn tokc_encode(
    tokenizer: *const Loaded,
    text: Slice,
    with_special: i32,
    with_bounds: i32,
    continues: i32,
    reading: u32,
    encoding: *mut EncodingOut,
    error: *mut OwnedString,
) -> i32 {
    answer(encoding, error, || {
        let loaded = &*tokenizer;
        let tokenizer = loaded.spelled.reader(&loaded.tokenizer, reading)?;
        let text = text.text()?;
        loaded.check_length(text)?;
        if reading != spelled::TOKENS {
            loaded.spelled.check_readable(text)?;
        }
        if reading == spelled::TEXT_BEHIND_TOKEN {
            let (ids, bounds) = spelled::encode_behind(tokenizer, text)?;
            return Ok(EncodingOut {
                count: ids.len(),
                ids: leak(ids),
                bounds: leak(bounds),
            });
        }
        if with_bounds == 0 {
            let encoded = tokenizer.encode_fast(text, with_special != 0)?;
            let ids = encoded.get_ids().to_vec();
            let count = ids.len();
            return Ok(EncodingOut {
                ids: leak(ids),
                bounds: std::ptr::null_mut(),
                count,
            });
        }
        let encoded = tokenizer.encode(text, with_special != 0)?;
        let ids = encoded.get_ids().to_vec();
        let count = ids.len();
        let mut offsets = encoded.get_offsets().to_vec();
        if continues != 0 {
            trim_first(tokenizer, &encoded, &mut offsets);
        }
        let bounds: Vec<usize> = offsets.iter().flat_map(|(start, end)| [*start, *end]).collect();
        if bounds.len() != 2 * count {
            return Err("as many offsets as tokens were expected".into());
        }
        Ok(EncodingOut {
            ids: leak(ids),
            bounds: leak(bounds),
            count,
        })
    })
}

#[no_mangle]
pub unsafe extern "C" fn tokc_decode(
    tokenizer: *const Loaded,
    ids: *const u32,
    count: usize,
    skip_special: i32,
    text: *mut OwnedString,
    error: *mut OwnedString,
) -> i32 {
    answer(text, error, || {
        let ids = if count == 0 {
            &[]
        } else {
            std::slice::from_raw_parts(ids, count)
        };
        Ok(OwnedString::new(
            (*tokenizer).tokenizer.decode(ids, skip_special != 0)?,
        ))
    })
}

#[no_mangle]
pub unsafe extern "C" fn tokc_id_of(tokenizer: *const Loaded, token: Slice) -> i64 {
    attempt(|| Ok((*tokenizer).tokenizer.token_to_id(token.text()?)))
        .ok()
        .flatten()
        .map_or(-1, i64::from)
}

#[no_mangle]
pub unsafe extern "C" fn tokc_token_of(
    tokenizer: *const Loaded,
    id: u32,
    token: *mut OwnedString,
) -> i32 {
    match attempt(|| Ok((*tokenizer).tokenizer.id_to_token(id))) {
        Ok(Some(text)) => {
            token.write(OwnedString::new(text));
            0
        }
        _ => 1,
    }
}

#[no_mangle]
pub unsafe extern "C" fn tokc_is_special(tokenizer: *const Loaded, id: u32) -> i32 {
    let special = attempt(|| {
        let added = (*tokenizer).tokenizer.get_added_vocabulary();
        let token = added.get_added_tokens_decoder().get(&id);
        Ok(token.is_some_and(|token| token.special))
    });
    i32::from(special.unwrap_or(false))
}

#[no_mangle]
pub unsafe extern "C" fn tokc_chat_new(
    tokenizer: *const Loaded,
    template: Slice,
    date: Slice,
    chat: *mut *mut Chat,
    error: *mut OwnedString,
) -> i32 {
    answer(chat, error, || {
        let names = &(*tokenizer).token_names;
        let chat = Chat::new(template.text()?, names, date.text()?)?;
        Ok(Box::into_raw(Box::new(chat)))
    })
}

#[no_mangle]
pub unsafe extern "C" fn tokc_chat_free(chat: *mut Chat) {
    if !chat.is_null() {
        drop(Box::from_raw(chat));
    }
}

#[no_mangle]
pub unsafe extern "C" fn tokc_chat_uses_date(chat: *const Chat) -> i32 {
    i32::from((*chat).uses_date)
}

#[no_mangle]
pub unsafe extern "C" fn tokc_chat_render(
    chat: *const Chat,
    variables: Slice,
    rendered: *mut RenderedOut,
    error: *mut OwnedString,
) -> i32 {
    answer(rendered, error, || {
        let done = (*chat).render(variables.text()?)?;
        let count = done.generated.len() / 2;
        Ok(RenderedOut {
            text: OwnedString::new(done.text),
            generated: leak(done.generated),
            count,
        })
    })
}

#[no_mangle]
pub unsafe extern "C" fn tokc_rendered_free(rendered: RenderedOut) {
    rendered.text.free();
    unleak(rendered.generated, 2 * rendered.count);
}

#[no_mangle]
pub unsafe extern "C" fn tokc_trainer_new(
    vocabulary_size: usize,
    min_frequency: u64,
    special_tokens: *const Slice,
    special_count: usize,
    trainer: *mut *mut Training,
    error: *mut OwnedString,
) -> i32 {
    answer(trainer, error, || {
        let mut specials = Vec::with_capacity(special_count);
        for index in 0..special_count {
            specials.push((*special_tokens.add(index)).text()?.to_owned());
        }
        let training = Training::new(vocabulary_size, min_frequency, specials)?;
        Ok(Box::into_raw(Box::new(training)))
    })
}

#[no_mangle]
pub unsafe extern "C" fn tokc_trainer_feed(
    trainer: *mut Training,
    document: Slice,
    error: *mut OwnedString,
) -> i32 {
    let mut done = ();
    answer(&mut done, error, || (*trainer).feed(document.text()?))
}

#[no_mangle]
pub unsafe extern "C" fn tokc_trainer_finish(
    trainer: *mut Training,
    prefix: Slice,
    tokenizer_json: *mut OwnedString,
    error: *mut OwnedString,
) -> i32 {
    answer(tokenizer_json, error, || {
        Ok(OwnedString::new((*trainer).finish(prefix.text()?)?))
    })
}

#[no_mangle]
pub unsafe extern "C" fn tokc_trainer_free(trainer: *mut Training) {
    if !trainer.is_null() {
        drop(Box::from_raw(trainer));
    }
}
