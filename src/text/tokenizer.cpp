#include "text/tokenizer.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/errors.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/mutex.h"
#include "base/texts.h"
#include "text/chat_marks.h"
#include "text/tokenizers_c_strings.h"

namespace longshore {
namespace {

namespace fs = std::filesystem;

// The largest tokenizer.json in use is about 35 MB.
constexpr Bytes kMaxTokenizerBytes = 256 * kMiB;
constexpr Bytes kMaxConfigBytes = 16 * kMiB;
// Texts up to this size are encoded at once; the library needs 150 to 200 bytes per byte of text.
constexpr size_t kShortText = size_t{64} << 10;
constexpr size_t kMaxWholeText = size_t{4} << 20;
// Pieces from which the normalizer may make more are encoded one at a time in the whole process,
// which limits memory over threads.
constexpr size_t kLargePiece = size_t{256} << 10;
// Usual normalizers write a mark of three bytes for a space, which all limits allow for.
constexpr size_t kUsualGrowth = 4;

std::string read_if_present(const fs::path& path, Bytes max_bytes) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return {};
  return python_numbers(read_whole_file(path.string(), max_bytes));
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

uint64_t fingerprint_of(const TokenizerFiles& files, uint32_t reading) {
  Hasher hasher;
  for (const std::string* text :
       {&files.tokenizer, &files.tokenizer_config, &files.special_tokens_map}) {
    const uint64_t bytes = text->size();
    hasher.update(bytes_of(std::span<const uint64_t>(&bytes, 1))).update(*text);
  }
  if (reading != 0) hasher.update(bytes_of(std::span<const uint32_t>(&reading, 1)));
  return hasher.digest();
}

// OwnedEncoding: owns an encoding and frees it with the library's function.
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

struct Asked {
  SpecialTokens special = SpecialTokens::kNone;
  bool with_spans = false;
  bool continues = false;  // a later piece of a longer text
  uint32_t reading = TOKC_TOKENS;
};

OwnedEncoding encode_text(const tokc_tokenizer* tokenizer, std::string_view text, size_t growth,
                          const Asked& asked, const std::string& origin) {
  static Mutex large;
  std::optional<MutexLock> alone;
  if (text.size() > kLargePiece / growth) alone.emplace(large);
  tokc_encoding encoding{};
  tokc_string error{};
  if (tokc_encode(tokenizer, slice_of(text), asked.special == SpecialTokens::kAdd, asked.with_spans,
                  asked.continues, asked.reading, &encoding, &error) != 0) {
    throw DataError(origin + ": cannot encode a text of " + std::to_string(text.size()) +
                    " bytes: " + take(error));
  }
  return OwnedEncoding(encoding);
}

// Appends tokens; their spans begin at the offset `at`.
void append(const EncodedText& part, size_t at, EncodedText& all) {
  all.ids.insert(all.ids.end(), part.ids.begin(), part.ids.end());
  for (const TextSpan& span : part.spans) all.spans.push_back({at + span.begin, at + span.end});
}

std::vector<TokenId> ids_of(const uint32_t* ids, size_t count) {
  return {ids, ids + count};
}

}  // namespace

void Tokenizer::Free::operator()(tokc_tokenizer* tokenizer) const noexcept {
  tokc_free(tokenizer);
}

Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer Tokenizer::load(const std::string& directory) {
  return from_files(read_files(directory), directory);
}

TokenizerFiles Tokenizer::read_files(const std::string& directory) {
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
  return files;
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
  tokenizer.growth_ = info.growth <= kUsualGrowth ? 1 : info.growth;
  tokenizer.stop_ids_.assign(info.stop_ids, info.stop_ids + info.stop_count);
  if (info.has_ends != 0) {
    tokenizer.ends_ = {ids_of(info.prefix_ids, info.prefix_count),
                       ids_of(info.suffix_ids, info.suffix_count)};
    tokenizer.check_ids(tokenizer.ends_->first);
    tokenizer.check_ids(tokenizer.ends_->second);
  }
  tokenizer.fingerprint_ = fingerprint_of(files, info.reading);
  return tokenizer;
}

void Tokenizer::check_ids(std::span<const TokenId> ids) const {
  for (const TokenId id : ids) {
    if (id >= 0 && id < id_limit_) continue;
    throw DataError(origin_ + ": the tokenizer gives the id " +
                    std::to_string(static_cast<uint32_t>(id)) + ", but its vocabulary ends at " +
                    std::to_string(id_limit_ - 1) +
                    "; correct the ids of post_processor in tokenizer.json");
  }
}

void Tokenizer::for_each_piece(std::string_view text, bool with_ends, uint32_t reading,
                               const std::function<void(std::string_view, size_t)>& use) const {
  if (text.size() <= kShortText) return use(text, 0);
  if (const auto bad = first_invalid_utf8(text)) {
    throw DataError(origin_ + ": cannot encode a text of " + std::to_string(text.size()) +
                    " bytes: not UTF-8 at byte " + std::to_string(*bad));
  }
  if (with_ends && !ends_) {
    if (text.size() <= kMaxWholeText) return use(text, 0);
    throw DataError(origin_ + ": cannot encode a text of " + std::to_string(text.size()) +
                    " bytes: this tokenizer's post_processor does more than adding tokens at its "
                    "ends, and then at most 4 MiB are encoded at once");
  }
  for (size_t begin = 0; begin < text.size();) {
    size_t end = 0;
    tokc_string error{};
    if (tokc_piece_end(handle_.get(), slice_of(text), begin, reading, &end, &error) != 0) {
      throw DataError(origin_ + ": cannot encode a text of " + std::to_string(text.size()) +
                      " bytes: from byte " + std::to_string(begin) + " on " + take(error));
    }
    use(text.substr(begin, end - begin), begin);
    begin = end;
  }
}

void Tokenizer::encode_parts(std::string_view text, SpecialTokens special, bool with_spans,
                             uint32_t reading,
                             const std::function<void(const EncodedText&)>& use) const {
  const auto use_added = [&](const std::vector<TokenId>& ids) {
    use({.ids = ids, .spans = std::vector<TextSpan>(ids.size())});
  };
  const bool adds = special == SpecialTokens::kAdd;
  for_each_piece(text, adds, reading, [&](std::string_view piece, size_t begin) {
    // The library adds special tokens to whole texts; for pieces this function adds them.
    const bool whole = piece.size() == text.size();
    const bool with_ends = adds && !whole;
    if (with_ends && begin == 0) use_added(ends_->first);
    const OwnedEncoding encoding =
        encode_text(handle_.get(), piece, growth_,
                    {.special = whole ? special : SpecialTokens::kNone,
                     .with_spans = with_spans,
                     .continues = begin > 0,
                     .reading = begin > 0 ? std::min<uint32_t>(reading, TOKC_TEXT) : reading},
                    origin_);
    EncodedText part{.ids = encoding.ids(), .spans = {}};
    check_ids(part.ids);
    if (with_spans) part.spans = encoding.spans();
    for (TextSpan& span : part.spans) span = {begin + span.begin, begin + span.end};
    use(part);
    if (with_ends && begin + piece.size() == text.size()) use_added(ends_->second);
  });
}

void Tokenizer::encode_pieces(std::string_view text, SpecialTokens special,
                              const std::function<void(std::span<const TokenId>)>& use,
                              SpelledTokens spelled) const {
  const uint32_t reading = spelled == SpelledTokens::kText ? TOKC_TEXT : TOKC_TOKENS;
  encode_parts(text, special, false, reading, [&use](const EncodedText& part) { use(part.ids); });
}

std::vector<TokenId> Tokenizer::encode(std::string_view text, SpecialTokens special) const {
  std::vector<TokenId> all;
  encode_pieces(text, special, [&all](std::span<const TokenId> ids) {
    all.insert(all.end(), ids.begin(), ids.end());
  });
  return all;
}

EncodedText Tokenizer::encode_with_spans(std::string_view text, SpecialTokens special) const {
  EncodedText all;
  encode_parts(text, special, true, TOKC_TOKENS,
               [&all](const EncodedText& part) { append(part, 0, all); });
  return all;
}

EncodedText Tokenizer::encode_with_spans(std::string_view text, SpecialTokens special,
                                         std::span<const TextSpan> as_text) const {
  if (as_text.empty()) return encode_with_spans(text, special);
  const bool adds = special == SpecialTokens::kAdd;
  if (adds && !ends_) {
    throw DataError(origin_ +
                    ": this tokenizer's post_processor does more than adding tokens at the ends of "
                    "a text, so that special tokens in it cannot be read as text; set "
                    "data.special_tokens to \"keep\" or \"error\"");
  }
  const auto is_text = [&](size_t begin, size_t end) {
    return std::ranges::any_of(
        as_text, [&](const TextSpan& span) { return span.begin < end && span.end > begin; });
  };
  EncodedText all;
  if (adds) append({ends_->first, std::vector<TextSpan>(ends_->first.size())}, 0, all);
  const EncodedText plain = encode_with_spans(text, SpecialTokens::kNone);
  // The text between two special tokens is a stretch, which is encoded again if it has a span.
  size_t first = 0, begin = 0;
  const auto end_stretch = [&](size_t last, size_t end) {
    if (is_text(begin, end)) {
      const uint32_t reading = begin == 0 ? TOKC_TEXT : TOKC_TEXT_BEHIND_TOKEN;
      encode_parts(text.substr(begin, end - begin), SpecialTokens::kNone, true, reading,
                   [&](const EncodedText& part) { append(part, begin, all); });
      return;
    }
    const auto from = static_cast<ptrdiff_t>(first), to = static_cast<ptrdiff_t>(last);
    append({{plain.ids.begin() + from, plain.ids.begin() + to},
            {plain.spans.begin() + from, plain.spans.begin() + to}},
           0, all);
  };
  for (size_t t = 0; t < plain.ids.size(); ++t) {
    const TextSpan& span = plain.spans[t];
    if (!is_special(plain.ids[t]) || is_text(span.begin, span.end)) continue;
    end_stretch(t, span.begin);
    append({{plain.ids[t]}, {span}}, 0, all);
    first = t + 1;
    begin = span.end;
  }
  end_stretch(plain.ids.size(), text.size());
  if (adds) append({ends_->second, std::vector<TextSpan>(ends_->second.size())}, 0, all);
  return all;
}

std::vector<TextSpan> Tokenizer::spelled_in(std::string_view text) const {
  tokc_encoding encoding{};
  tokc_string error{};
  if (tokc_spelled(handle_.get(), slice_of(text), &encoding, &error) != 0) {
    throw DataError(origin_ + ": cannot search a text for special tokens: " + take(error));
  }
  return OwnedEncoding(encoding).spans();
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

namespace {

// This is U+FDDA; the marks of chat_marks.cpp and of {% generation %} blocks are others.
constexpr std::string_view kBreak = "\xEF\xB7\x9A";

// Returns the bytes of the letter that a text in UTF-8 begins with.
size_t first_letter(std::string_view text) {
  size_t bytes = 1;
  while (bytes < text.size() && (static_cast<unsigned char>(text[bytes]) & 0xC0U) == 0x80U) ++bytes;
  return bytes;
}

}  // namespace

std::vector<TextSpan> special_tokens_of(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<TextSpan> spans = tokenizer.spelled_in(text);
  std::erase_if(spans, [&](const TextSpan& span) {
    const std::string_view token = text.substr(span.begin, span.end - span.begin);
    return token == kOpenThought || token == kCloseThought;
  });
  return spans;
}

std::string with_breaks(const Tokenizer& tokenizer, std::string_view text) {
  std::string broken;
  size_t done = 0;
  for (const TextSpan& span : special_tokens_of(tokenizer, text)) {
    const size_t at = span.begin + first_letter(text.substr(span.begin, span.end - span.begin));
    broken += text.substr(done, at - done);
    // A token of one letter cannot be broken up.
    if (at < span.end) broken += kBreak;
    done = at;
  }
  broken += text.substr(done);
  return broken;
}

void for_each_text(Json& value, const std::function<void(std::string&)>& use) {
  if (value.is_string()) {
    use(value.get_ref<std::string&>());
  } else if (value.is_structured()) {
    for (Json& inner : value) for_each_text(inner, use);
  }
}

size_t TextWithoutBreaks::offset(size_t with_breaks) const {
  size_t before = 0;
  while (before < breaks.size() && breaks[before] + before * kBreak.size() < with_breaks) ++before;
  return with_breaks - before * kBreak.size();
}

EncodedText TextWithoutBreaks::encode(const Tokenizer& tokenizer, SpecialTokens special) const {
  std::vector<TextSpan> as_text;
  if (!breaks.empty()) as_text = tokenizer.spelled_in(text);
  std::erase_if(as_text, [this](const TextSpan& span) {
    const auto inside = std::ranges::upper_bound(breaks, span.begin);
    return inside == breaks.end() || *inside >= span.end;
  });
  return tokenizer.encode_with_spans(text, special, as_text);
}

TextWithoutBreaks without_breaks(std::string text) {
  TextWithoutBreaks result;
  size_t done = 0;
  for (size_t at = text.find(kBreak); at != std::string::npos; at = text.find(kBreak, done)) {
    result.text += std::string_view(text).substr(done, at - done);
    result.breaks.push_back(result.text.size());
    done = at + kBreak.size();
  }
  result.text = done == 0 ? std::move(text) : result.text + text.substr(done);
  return result;
}

}  // namespace longshore
