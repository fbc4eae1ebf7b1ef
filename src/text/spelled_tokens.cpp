#include "text/spelled_tokens.h"

#include <algorithm>
#include <utility>

#include "text/chat_marks.h"

namespace longshore {
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
