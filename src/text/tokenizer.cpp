#include "text/tokenizer.h"

#include <filesystem>
#include <initializer_list>
#include <utility>

#include "base/errors.h"
#include "base/file.h"
#include "base/hash.h"
#include "text/tokenizers_c_strings.h"

namespace longshore {
namespace {

namespace fs = std::filesystem;

// The largest tokenizer.json in use is about 35 MB.
constexpr Bytes kMaxTokenizerBytes = 256 * kMiB;
constexpr Bytes kMaxConfigBytes = 16 * kMiB;

std::string read_if_present(const fs::path& path, Bytes max_bytes) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return {};
  return read_whole_file(path.string(), max_bytes);
}

[[noreturn]] void refuse_without_tokenizer_json(const std::string& directory) {
  std::error_code ignored;
  for (const char* name : {"tokenizer.model", "vocab.json", "vocab.txt"}) {
    if (!fs::exists(fs::path(directory) / name, ignored)) continue;
    throw DataError(directory + ": has " + name +
                    " but no tokenizer.json; write one once with transformers: "
                    "AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)");
  }
  throw DataError(directory +
                  ": no tokenizer.json; give a Hugging Face model directory, or set "
                  "tokenizer.path to one that has it");
}

std::optional<TokenId> optional_id(int64_t id) {
  if (id < 0) return std::nullopt;
  return static_cast<TokenId>(id);
}

uint64_t fingerprint_of(const TokenizerFiles& files) {
  Hasher hasher;
  for (const std::string* text :
       {&files.tokenizer, &files.tokenizer_config, &files.special_tokens_map}) {
    const uint64_t bytes = text->size();
    hasher.update(bytes_of(std::span<const uint64_t>(&bytes, 1))).update(*text);
  }
  return hasher.digest();
}

// Frees what the library allocated for an encoding.
class OwnedEncoding {
 public:
  explicit OwnedEncoding(tokc_encoding encoding) : encoding_(encoding) {}
  OwnedEncoding(const OwnedEncoding&) = delete;
  OwnedEncoding& operator=(const OwnedEncoding&) = delete;
  ~OwnedEncoding() { tokc_encoding_free(encoding_); }

  std::vector<TokenId> ids() const { return {encoding_.ids, encoding_.ids + encoding_.count}; }
  std::vector<TextSpan> spans() const {
    std::vector<TextSpan> spans(encoding_.count);
    for (size_t i = 0; i < spans.size(); ++i) {
      spans[i] = {encoding_.bounds[2 * i], encoding_.bounds[2 * i + 1]};
    }
    return spans;
  }

 private:
  tokc_encoding encoding_;
};

OwnedEncoding encode_text(const tokc_tokenizer* tokenizer, std::string_view text,
                          SpecialTokens special, bool with_spans, const std::string& origin) {
  tokc_encoding encoding{};
  tokc_string error{};
  if (tokc_encode(tokenizer, slice_of(text), special == SpecialTokens::kAdd, with_spans, &encoding,
                  &error) != 0) {
    throw DataError(origin + ": cannot encode a text of " + std::to_string(text.size()) +
                    " bytes: " + take(error));
  }
  return OwnedEncoding(encoding);
}

}  // namespace

void Tokenizer::Free::operator()(tokc_tokenizer* tokenizer) const noexcept {
  tokc_free(tokenizer);
}

Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer Tokenizer::load(const std::string& directory) {
  const fs::path root(directory);
  std::error_code ignored;
  if (!fs::is_directory(root, ignored)) {
    throw DataError(directory + ": not a directory; give a Hugging Face model directory");
  }
  if (!fs::exists(root / "tokenizer.json", ignored)) refuse_without_tokenizer_json(directory);
  TokenizerFiles files;
  files.tokenizer = read_whole_file((root / "tokenizer.json").string(), kMaxTokenizerBytes);
  files.tokenizer_config = read_if_present(root / "tokenizer_config.json", kMaxConfigBytes);
  files.special_tokens_map = read_if_present(root / "special_tokens_map.json", kMaxConfigBytes);
  files.generation_config = read_if_present(root / "generation_config.json", kMaxConfigBytes);
  files.model_config = read_if_present(root / "config.json", kMaxConfigBytes);
  return from_files(files, directory);
}

Tokenizer Tokenizer::from_files(const TokenizerFiles& files, const std::string& origin) {
  const tokc_files slices = {slice_of(files.tokenizer), slice_of(files.tokenizer_config),
                             slice_of(files.special_tokens_map), slice_of(files.generation_config),
                             slice_of(files.model_config)};
  tokc_tokenizer* handle = nullptr;
  tokc_string error{};
  if (tokc_load(&slices, &handle, &error) != 0) {
    throw DataError(origin + "/" + take(error));
  }
  Tokenizer tokenizer;
  tokenizer.handle_.reset(handle);
  tokenizer.origin_ = origin;
  const tokc_info info = tokc_describe(handle);
  tokenizer.vocabulary_size_ = static_cast<int64_t>(info.vocabulary_size);
  tokenizer.id_limit_ = info.id_limit;
  tokenizer.bos_ = optional_id(info.bos);
  tokenizer.eos_ = optional_id(info.eos);
  tokenizer.pad_ = optional_id(info.pad);
  tokenizer.stop_ids_.assign(info.stop_ids, info.stop_ids + info.stop_count);
  tokenizer.fingerprint_ = fingerprint_of(files);
  return tokenizer;
}

std::vector<TokenId> Tokenizer::encode(std::string_view text, SpecialTokens special) const {
  return encode_text(handle_.get(), text, special, false, origin_).ids();
}

EncodedText Tokenizer::encode_with_spans(std::string_view text, SpecialTokens special) const {
  const OwnedEncoding encoding = encode_text(handle_.get(), text, special, true, origin_);
  return {encoding.ids(), encoding.spans()};
}

std::string Tokenizer::decode(std::span<const TokenId> ids, bool skip_special) const {
  std::vector<uint32_t> known;
  known.reserve(ids.size());
  for (const TokenId id : ids) {
    if (id >= 0) known.push_back(static_cast<uint32_t>(id));
  }
  tokc_string text{}, error{};
  if (tokc_decode(handle_.get(), known.data(), known.size(), skip_special, &text, &error) != 0) {
    throw DataError(origin_ + ": cannot decode " + std::to_string(ids.size()) +
                    " tokens: " + take(error));
  }
  return take(text);
}

std::optional<TokenId> Tokenizer::id_of(std::string_view token) const {
  return optional_id(tokc_id_of(handle_.get(), slice_of(token)));
}

bool Tokenizer::is_special(TokenId id) const {
  return id >= 0 && tokc_is_special(handle_.get(), static_cast<uint32_t>(id)) != 0;
}

std::optional<std::string> Tokenizer::token_of(TokenId id) const {
  tokc_string token{};
  if (id < 0 || tokc_token_of(handle_.get(), static_cast<uint32_t>(id), &token) != 0) {
    return std::nullopt;
  }
  return take(token);
}

}  // namespace longshore
