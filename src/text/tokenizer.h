// Tokenizer: converts text to token ids and back, exactly as Hugging Face tokenizers and
// transformers 5 do for a model directory. Immutable after loading; any thread may use it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

struct tokc_tokenizer;

namespace longshore {

// TokenId: a token's index in the vocabulary, from 0. A negative value means no token.
using TokenId = int32_t;

// Selects whether the post-processor's special tokens (such as a leading bos) are added to a text.
enum class SpecialTokens : uint8_t { kNone, kAdd };

// SpelledTokens: how special tokens that a text spells, such as "<|im_end|>", are read.
enum class SpelledTokens : uint8_t { kTokens, kText };

// TextSpan: the bytes [begin, end) of a text that a token covers; empty for added special tokens.
struct TextSpan {
  size_t begin = 0;
  size_t end = 0;
};

struct EncodedText {
  std::vector<TokenId> ids;
  std::vector<TextSpan> spans;  // one for each id
};

// The contents of the files that affect tokenization. Files other than the first may be empty.
struct TokenizerFiles {
  std::string tokenizer{};           // tokenizer.json
  std::string tokenizer_config{};    // tokenizer_config.json
  std::string special_tokens_map{};  // special_tokens_map.json
  std::string generation_config{};   // generation_config.json
  std::string model_config{};        // config.json
};

class Tokenizer {
 public:
  // Reads the files of a model directory. A DataError names the file and the fix.
  static Tokenizer load(const std::string& directory);
  // Returns the texts that `load` makes it of.
  static TokenizerFiles read_files(const std::string& directory);
  // `origin` replaces the directory in error texts.
  static Tokenizer from_files(const TokenizerFiles& files, const std::string& origin);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Throws DataError if `text` is not UTF-8, if the tokenizer's rules fail on it, if an id is
  // outside the vocabulary, or if more than 4 MiB have no point at which the tokenizer surely
  // splits. Otherwise a long text needs 4 bytes per token and about 6 MiB more.
  std::vector<TokenId> encode(std::string_view text, SpecialTokens special) const;
  EncodedText encode_with_spans(std::string_view text, SpecialTokens special) const;
  // Reads the special tokens in the spans `as_text` as text, and all others as tokens. Throws
  // DataError if tokens are added at the ends and the post-processor does more than that.
  EncodedText encode_with_spans(std::string_view text, SpecialTokens special,
                                std::span<const TextSpan> as_text) const;
  // Passes the tokens that `encode` returns to `use`, one piece of the text at a time.
  void encode_pieces(std::string_view text, SpecialTokens special,
                     const std::function<void(std::span<const TokenId>)>& use,
                     SpelledTokens spelled = SpelledTokens::kTokens) const;
  // Returns the special tokens that a text (in UTF-8) spells, in order.
  std::vector<TextSpan> spelled_in(std::string_view text) const;
  // Skips ids outside the vocabulary, as transformers does.
  std::string decode(std::span<const TokenId> ids, bool skip_special = true) const;

  // Returns the number of distinct tokens, with added ones.
  int64_t vocabulary_size() const { return vocabulary_size_; }
  // Returns the greatest id + 1, which is the number of rows of a model's embedding.
  int64_t id_limit() const { return id_limit_; }
  std::optional<TokenId> id_of(std::string_view token) const;
  // Returns the token's spelling in the vocabulary; nullopt if the id does not exist.
  std::optional<std::string> token_of(TokenId id) const;

  // Returns true for special tokens of the vocabulary, such as an end of turn.
  bool is_special(TokenId id) const;

  std::optional<TokenId> bos() const { return bos_; }
  std::optional<TokenId> eos() const { return eos_; }
  std::optional<TokenId> pad() const { return pad_; }
  // Returns the tokens that end generation, ascending: eos and those of generation_config.json.
  const std::vector<TokenId>& stop_ids() const { return stop_ids_; }
  // Returns the factor by which replacements may lengthen a text before it is split into tokens; 1
  // for usual tokenizers. Callers divide the size of the texts that they hold in memory by it.
  size_t growth() const { return growth_; }
  // Returns a hash that changes whenever the same text could get other ids. It is part of the key
  // of prepared files.
  uint64_t fingerprint() const { return fingerprint_; }

 private:
  friend class ChatTemplate;  // reads the names of special tokens
  struct Free {
    void operator()(tokc_tokenizer* tokenizer) const noexcept;
  };
  Tokenizer() = default;
  void check_ids(std::span<const TokenId> ids) const;
  // Calls `use` with each separately encoded piece of a text and its offset.
  void for_each_piece(std::string_view text, bool with_ends, uint32_t reading,
                      const std::function<void(std::string_view, size_t)>& use) const;
  // Calls `use` with the tokens of each piece and the special tokens at both ends. Spans refer to
  // the whole text; they are empty unless `with_spans` is set. `reading` is tokenizers_c.h's.
  void encode_parts(std::string_view text, SpecialTokens special, bool with_spans, uint32_t reading,
                    const std::function<void(const EncodedText&)>& use) const;

  std::unique_ptr<tokc_tokenizer, Free> handle_;
  std::string origin_;
  int64_t vocabulary_size_ = 0;
  int64_t id_limit_ = 0;
  size_t growth_ = 1;
  std::optional<TokenId> bos_, eos_, pad_;
  std::vector<TokenId> stop_ids_;
  // The ids that the post-processor adds before and after a text; nullopt if it does anything else.
  std::optional<std::pair<std::vector<TokenId>, std::vector<TokenId>>> ends_;
  uint64_t fingerprint_ = 0;
};

// Spelled tokens: special tokens that occur as text in a user's rows, such as "<|im_end|>" typed
// into a message. To be read as text, a token is broken up: a noncharacter of Unicode follows its
// first letter while a template writes it, and is removed before the result is encoded. Plain
// functions, any thread.

// Returns the special tokens that a text spells, except the marks of thoughts, which are part of
// the form of a message.
std::vector<TextSpan> special_tokens_of(const Tokenizer& tokenizer, std::string_view text);

// Breaks up the special tokens of a text.
std::string with_breaks(const Tokenizer& tokenizer, std::string_view text);

// Calls `use` for each string in a value, but not for names of members.
void for_each_text(Json& value, const std::function<void(std::string&)>& use);

// TextWithoutBreaks: a text whose breaks were removed.
struct TextWithoutBreaks {
  std::string text;
  std::vector<size_t> breaks;  // their offsets in `text`, ascending

  // Converts an offset in the text with breaks.
  size_t offset(size_t with_breaks) const;
  // Encodes the text; special tokens that were broken up are read as text.
  EncodedText encode(const Tokenizer& tokenizer, SpecialTokens special) const;
};
TextWithoutBreaks without_breaks(std::string text);

}  // namespace longshore
