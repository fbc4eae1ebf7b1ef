#include "trainer/use/answer_text.h"

#include <algorithm>
#include <utility>

namespace longshore {

std::optional<size_t> find_stop(std::string_view text, std::span<const std::string> stops) {
  size_t first = std::string_view::npos;
  for (const std::string& stop : stops) first = std::min(first, text.find(stop));
  return first == std::string_view::npos ? std::nullopt : std::optional(first);
}

std::string AnswerText::take(std::span<const TokenId> added) {
  decode_new(added);
  const size_t end = settled();
  if (end <= returned_) return {};
  const size_t from = std::exchange(returned_, end);
  return text_.substr(from, end - from);
}

void AnswerText::decode_new(std::span<const TokenId> added) {
  static constexpr std::string_view kUnfinished = "\xEF\xBF\xBD";  // U+FFFD
  const std::string before = tokenizer_->decode(added.subspan(window_, read_ - window_));
  const std::string now = tokenizer_->decode(added.subspan(window_));
  if (now.size() <= before.size() || now.ends_with(kUnfinished)) return;
  size_t longest = 0;
  for (const std::string& stop : stops_) longest = std::max(longest, stop.size());
  const size_t searched = text_.size() - std::min(text_.size(), longest);
  text_ += now.substr(before.size());
  window_ = read_;
  read_ = added.size();
  if (stop_) return;
  const auto found = find_stop(std::string_view(text_).substr(searched), stops_);
  if (found) stop_ = searched + *found;
}

// Returns the bytes of the text that no stop string can take back.
size_t AnswerText::settled() const {
  if (stop_) return *stop_;
  size_t held = 0;
  for (const std::string& stop : stops_) {
    for (size_t part = std::min(stop.size() - 1, text_.size()); part > held; --part) {
      if (std::string_view(text_).ends_with(std::string_view(stop).substr(0, part))) held = part;
    }
  }
  return text_.size() - held;
}

AnswerText::Whole AnswerText::whole(std::span<const TokenId> added) const {
  std::string text = tokenizer_->decode(added);
  std::optional<size_t> stop = find_stop(text, stops_);
  if (!stop && stop_) {
    text = text_;  // the pieces that were printed differ from the whole, as few tokenizers do
    stop = stop_;
  }
  if (stop) text.resize(*stop);
  return {.text = std::move(text), .stopped = stop.has_value()};
}

std::string AnswerText::rest(const Whole& whole) {
  if (whole.text.size() <= returned_) return {};
  const size_t from = std::exchange(returned_, whole.text.size());
  return whole.text.substr(from);
}

}  // namespace longshore
