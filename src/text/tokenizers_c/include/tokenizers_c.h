// tokenizers_c: the C interface of the Rust crate in this folder. No call aborts or throws: each
// returns 0, or 1 with a message in *error. The caller frees returned strings and encodings with
// the matching function. Any thread may use a tokenizer; a trainer has one owner thread.
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

// Bytes owned by the caller; size 0 if a file is absent.
typedef struct {
  const uint8_t* data;
  size_t size;
} tokc_slice;

// Bytes owned by the receiver, without a terminating zero.
typedef struct {
  uint8_t* data;
  size_t size;
} tokc_string;

// bounds holds 2 * count byte offsets into the text (start and end of each token); null if not
// requested.
typedef struct {
  uint32_t* ids;
  size_t* bounds;
  size_t count;
} tokc_encoding;

// A rendered conversation. generated holds 2 * count byte offsets into the text: start and end of
// each {% generation %} block.
typedef struct {
  tokc_string text;
  size_t* generated;
  size_t count;
} tokc_rendered;

// The files of a model directory that affect tokenization. Only the first is required.
typedef struct {
  tokc_slice tokenizer;           // tokenizer.json
  tokc_slice tokenizer_config;    // tokenizer_config.json
  tokc_slice special_tokens_map;  // special_tokens_map.json
  tokc_slice generation_config;   // generation_config.json
  tokc_slice model_config;        // config.json
} tokc_files;

// The properties of a tokenizer; an id of -1 means that there is no such token.
typedef struct {
  size_t vocabulary_size;  // distinct tokens, added ones included
  int64_t id_limit;        // greatest id + 1
  int64_t bos;
  int64_t eos;
  int64_t pad;
  const uint32_t* stop_ids;  // tokens that end generation; owned by the tokenizer
  size_t stop_count;
  const uint32_t* prefix_ids;  // ids that the post-processor adds before and after a text
  size_t prefix_count;
  const uint32_t* suffix_ids;
  size_t suffix_count;
  int has_ends;      // 0: the post-processor does more than add them
  uint32_t reading;  // not 0: the directory's class overrides parts of the files
  size_t growth;     // the factor by which the normalizer's replacements may lengthen a text
} tokc_info;

void tokc_string_free(tokc_string text);
void tokc_encoding_free(tokc_encoding encoding);

int tokc_load(const tokc_files* files, tokc_tokenizer** tokenizer, tokc_string* error);
void tokc_free(tokc_tokenizer* tokenizer);
tokc_info tokc_describe(const tokc_tokenizer* tokenizer);

// These values say how special tokens that a text spells are read: as tokens; as text; or as text,
// where the text follows a special token.
enum { TOKC_TOKENS = 0, TOKC_TEXT = 1, TOKC_TEXT_BEHIND_TOKEN = 2 };

// Returns in *end the end of the piece that begins at `begin`, which is 0 or the end of another
// piece. Pieces of a long text have the tokens of the whole. `text` must be UTF-8; this is not
// checked. Fails if a long stretch cannot be cut.
int tokc_piece_end(const tokc_tokenizer* tokenizer, tokc_slice text, size_t begin, uint32_t reading,
                   size_t* end, tokc_string* error);
// `continues` says that the text is a later piece of a longer one.
int tokc_encode(const tokc_tokenizer* tokenizer, tokc_slice text, int with_special, int with_bounds,
                int continues, uint32_t reading, tokc_encoding* encoding, tokc_string* error);
// Returns the special tokens that a text spells, with bounds. `text` must be UTF-8; this is not
// checked.
int tokc_spelled(const tokc_tokenizer* tokenizer, tokc_slice text, tokc_encoding* encoding,
                 tokc_string* error);
int tokc_decode(const tokc_tokenizer* tokenizer, const uint32_t* ids, size_t count,
                int skip_special, tokc_string* text, tokc_string* error);
// Returns -1 if there is no such token.
int64_t tokc_id_of(const tokc_tokenizer* tokenizer, tokc_slice token);
// Returns 1 if there is no such id.
int tokc_token_of(const tokc_tokenizer* tokenizer, uint32_t id, tokc_string* token);

// Returns 1 if the id is that of a special token, else 0.
int tokc_is_special(const tokc_tokenizer* tokenizer, uint32_t id);

// A chat template in the environment of transformers. Any thread may use it. It does not need the
// tokenizer after this call. `date` ("2024-07-26") is the result of strftime_now.
int tokc_chat_new(const tokc_tokenizer* tokenizer, tokc_slice chat_template, tokc_slice date,
                  tokc_chat** chat, tokc_string* error);
void tokc_chat_free(tokc_chat* chat);
int tokc_chat_uses_date(const tokc_chat* chat);
// `variables` is a JSON object with messages, tools, add_generation_prompt and so on.
int tokc_chat_render(const tokc_chat* chat, tokc_slice variables, tokc_rendered* rendered,
                     tokc_string* error);
void tokc_rendered_free(tokc_rendered rendered);

// Creates a byte-level BPE trainer. special_tokens get the ids from 0; the 256 bytes follow.
int tokc_trainer_new(size_t vocabulary_size, uint64_t min_frequency,
                     const tokc_slice* special_tokens, size_t special_count, tokc_trainer** trainer,
                     tokc_string* error);
// Counts the words of one document.
int tokc_trainer_feed(tokc_trainer* trainer, tokc_slice document, tokc_string* error);
// Learns the merges and returns the bytes of tokenizer.json. `prefix` is the special token that
// starts every encoding; it may be empty.
int tokc_trainer_finish(tokc_trainer* trainer, tokc_slice prefix, tokc_string* tokenizer_json,
                        tokc_string* error);
void tokc_trainer_free(tokc_trainer* trainer);

#ifdef __cplusplus
}
#endif

#endif  // LONGSHORE_TOKENIZERS_C_H_
