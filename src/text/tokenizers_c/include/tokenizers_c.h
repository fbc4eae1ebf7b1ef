// tokenizers_c: the C interface of the Rust crate beside it. No call aborts or throws: each returns
// 0, or 1 and a message in *error. Strings and encodings that come back are freed with the matching
// function. A tokenizer may be used by many threads at once; a trainer by one.
#ifndef LONGSHORE_TOKENIZERS_C_H_
#define LONGSHORE_TOKENIZERS_C_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tokc_tokenizer tokc_tokenizer;
typedef struct tokc_trainer tokc_trainer;
typedef struct tokc_chat tokc_chat;

// Borrowed bytes; size 0 where a file is absent.
typedef struct {
  const uint8_t* data;
  size_t size;
} tokc_slice;

// Owned bytes, not ended by a zero.
typedef struct {
  uint8_t* data;
  size_t size;
} tokc_string;

// bounds holds 2 * count byte offsets into the text, start and end of each token; null unless
// asked for.
typedef struct {
  uint32_t* ids;
  size_t* bounds;
  size_t count;
} tokc_encoding;

// A rendered conversation; generated holds 2 * count byte offsets into the text, start and end of
// what each {% generation %} block made.
typedef struct {
  tokc_string text;
  size_t* generated;
  size_t count;
} tokc_rendered;

// The files of a model directory that take part in tokenization. Only the first is required.
typedef struct {
  tokc_slice tokenizer;           // tokenizer.json
  tokc_slice tokenizer_config;    // tokenizer_config.json
  tokc_slice special_tokens_map;  // special_tokens_map.json
  tokc_slice generation_config;   // generation_config.json
  tokc_slice model_config;        // config.json
} tokc_files;

// What a tokenizer says of itself; -1 where there is no such token.
typedef struct {
  size_t vocabulary_size;  // distinct tokens, added ones included
  int64_t id_limit;        // greatest id + 1
  int64_t bos;
  int64_t eos;
  int64_t pad;
  const uint32_t* stop_ids;  // tokens that end a generated text; lives as long as the tokenizer
  size_t stop_count;
  const uint32_t* prefix_ids;  // what the post-processor puts in front of a text, and behind it
  size_t prefix_count;
  const uint32_t* suffix_ids;
  size_t suffix_count;
  int has_ends;      // 0: the post-processor does more than that
  uint32_t reading;  // not 0: the class of the directory reads the files otherwise than they say
} tokc_info;

void tokc_string_free(tokc_string text);
void tokc_encoding_free(tokc_encoding encoding);

int tokc_load(const tokc_files* files, tokc_tokenizer** tokenizer, tokc_string* error);
void tokc_free(tokc_tokenizer* tokenizer);
tokc_info tokc_describe(const tokc_tokenizer* tokenizer);

// A long text is encoded in pieces whose tokens are those of the whole: the end of the piece that
// begins at `begin`, which is 0 or the end of another piece. `text` is UTF-8, which is not checked.
// Fails where a long stretch cannot be cut.
int tokc_piece_end(const tokc_tokenizer* tokenizer, tokc_slice text, size_t begin, size_t* end,
                   tokc_string* error);
// `continues`: the text is a later piece of a longer one.
int tokc_encode(const tokc_tokenizer* tokenizer, tokc_slice text, int with_special, int with_bounds,
                int continues, tokc_encoding* encoding, tokc_string* error);
int tokc_decode(const tokc_tokenizer* tokenizer, const uint32_t* ids, size_t count,
                int skip_special, tokc_string* text, tokc_string* error);
// -1 where there is no such token.
int64_t tokc_id_of(const tokc_tokenizer* tokenizer, tokc_slice token);
// 1 where there is no such id.
int tokc_token_of(const tokc_tokenizer* tokenizer, uint32_t id, tokc_string* token);

// 1 where the id is that of a special token, 0 else.
int tokc_is_special(const tokc_tokenizer* tokenizer, uint32_t id);

// A chat template in the environment of transformers; it may be used by many threads at once and
// does not need the tokenizer any more. `date` ("2024-07-26") is what strftime_now tells.
int tokc_chat_new(const tokc_tokenizer* tokenizer, tokc_slice chat_template, tokc_slice date,
                  tokc_chat** chat, tokc_string* error);
void tokc_chat_free(tokc_chat* chat);
int tokc_chat_uses_date(const tokc_chat* chat);
// `variables`: a JSON object with messages, tools, add_generation_prompt and so on.
int tokc_chat_render(const tokc_chat* chat, tokc_slice variables, tokc_rendered* rendered,
                     tokc_string* error);
void tokc_rendered_free(tokc_rendered rendered);

// A byte-level BPE trainer. special_tokens get the ids from 0, the 256 bytes follow.
int tokc_trainer_new(size_t vocabulary_size, uint64_t min_frequency,
                     const tokc_slice* special_tokens, size_t special_count, tokc_trainer** trainer,
                     tokc_string* error);
// Counts the words of one document.
int tokc_trainer_feed(tokc_trainer* trainer, tokc_slice document, tokc_string* error);
// Learns the merges; `prefix` (may be empty) is the special token that starts every encoding.
// Returns the bytes of tokenizer.json.
int tokc_trainer_finish(tokc_trainer* trainer, tokc_slice prefix, tokc_string* tokenizer_json,
                        tokc_string* error);
void tokc_trainer_free(tokc_trainer* trainer);

#ifdef __cplusplus
}
#endif

#endif  // LONGSHORE_TOKENIZERS_C_H_
