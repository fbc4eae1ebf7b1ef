// Tokenizer: text to token ids and back, exactly as Hugging Face tokenizers and transformers 5 do
// it for a model directory. Immutable after loading; any number of threads may use one at once.
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

struct tokc_tokenizer;

namespace longshore {

// A token's place in the vocabulary, from 0. Negative: no token.
using TokenId = int32_t;

// Whether the post-processor's special tokens (a bos in front, say) are added to a text.
enum class SpecialTokens : uint8_t { kNone, kAdd };

// The bytes of a text that a token covers: [begin, end). Special tokens that were added cover none.
struct TextSpan {
  size_t begin = 0;
  size_t end = 0;
};

struct EncodedText {
  std::vector<TokenId> ids;
  std::vector<TextSpan> spans;  // one for each id
};

// The contents of the files that take part in tokenization; empty where absent, except the first.
struct TokenizerFiles {
  std::string tokenizer{};           // tokenizer.json
  std::string tokenizer_config{};    // tokenizer_config.json
  std::string special_tokens_map{};  // special_tokens_map.json
  std::string generation_config{};   // generation_config.json
  std::string model_config{};        // config.json
};

class Tokenizer {
 public:
  // Reads the files of a model directory. DataError names the file and what to do.
  static Tokenizer load(const std::string& directory);
  // `origin` stands for the directory in error texts.
  static Tokenizer from_files(const TokenizerFiles& files, const std::string& origin);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // DataError when `text` is not UTF-8, when the tokenizer's own rules fail on it, when it gives an
  // id that its vocabulary does not have, and for a stretch of more than 4 MiB in which it surely
  // splits nowhere. Otherwise a long text takes 4 bytes for each token and about 6 MiB more.
  std::vector<TokenId> encode(std::string_view text, SpecialTokens special) const;
  EncodedText encode_with_spans(std::string_view text, SpecialTokens special) const;
  // Hands over what `encode` returns, a piece of the text at a time.
  void encode_pieces(std::string_view text, SpecialTokens special,
                     const std::function<void(std::span<const TokenId>)>& use) const;
  // Ids outside the vocabulary are left out, as transformers leaves them out.
  std::string decode(std::span<const TokenId> ids, bool skip_special = true) const;

  // Distinct tokens, added ones included.
  int64_t vocabulary_size() const { return vocabulary_size_; }
  // Greatest id + 1: the rows that a model's embedding must have.
  int64_t id_limit() const { return id_limit_; }
  std::optional<TokenId> id_of(std::string_view token) const;
  // The token as the vocabulary spells it; nullopt where there is no such id.
  std::optional<std::string> token_of(TokenId id) const;

  // Of the vocabulary's special tokens: an end of turn, for example.
  bool is_special(TokenId id) const;

  std::optional<TokenId> bos() const { return bos_; }
  std::optional<TokenId> eos() const { return eos_; }
  std::optional<TokenId> pad() const { return pad_; }
  // Tokens that end a generated text: eos and those of generation_config.json, ascending.
  const std::vector<TokenId>& stop_ids() const { return stop_ids_; }
  // Changes whenever the same text could give other ids: part of the key of prepared files.
  uint64_t fingerprint() const { return fingerprint_; }

 private:
  friend class ChatTemplate;  // templates know the names of special tokens
  struct Free {
    void operator()(tokc_tokenizer* tokenizer) const noexcept;
  };
  Tokenizer() = default;
  void check_ids(std::span<const TokenId> ids) const;
  // Calls `use` with the pieces of a text that are encoded alone, and where each begins.
  void for_each_piece(std::string_view text, bool with_ends,
                      const std::function<void(std::string_view, size_t)>& use) const;
  // Calls `use` with the tokens of each, and those at the ends of the text; spans of the whole text
  // where they are wanted, else none.
  void encode_parts(std::string_view text, SpecialTokens special, bool with_spans,
                    const std::function<void(const EncodedText&)>& use) const;

  std::unique_ptr<tokc_tokenizer, Free> handle_;
  std::string origin_;
  int64_t vocabulary_size_ = 0;
  int64_t id_limit_ = 0;
  std::optional<TokenId> bos_, eos_, pad_;
  std::vector<TokenId> stop_ids_;
  // What the post-processor puts around a text; nothing where it does more than that.
  std::optional<std::pair<std::vector<TokenId>, std::vector<TokenId>>> ends_;
  uint64_t fingerprint_ = 0;
};

}  // namespace longshore
