// AnswerText: the text of one answer while its tokens arrive, piece by piece, and the place where a
// stop string ends it. A stop string may begin and end within tokens. Owned by the caller; one
// thread.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace longshore {

// Returns where the first of the stop strings begins in the text; nullopt if it has none.
std::optional<size_t> find_stop(std::string_view text, std::span<const std::string> stops);

class AnswerText {
 public:
  // Both must outlive it. The texts of `stops` are not empty.
  AnswerText(const Tokenizer* tokenizer, std::span<const std::string> stops)
      : tokenizer_(tokenizer), stops_(stops) {}

  // Returns the text that is new since the last call: whole characters, and without an end in which
  // a stop string may begin. `added` has all tokens of the answer so far. Each call decodes the
  // last few tokens alone.
  std::string take(std::span<const TokenId> added);
  // Returns whether the answer so far has a stop string.
  bool stopped() const { return stop_.has_value(); }

  // Ends the answer: its whole text, up to a stop string.
  struct Whole {
    std::string text;
    bool stopped = false;  // by a stop string
  };
  Whole whole(std::span<const TokenId> added) const;
  // Returns what the calls of `take` have not returned of the whole text.
  std::string rest(const Whole& whole);

 private:
  void decode_new(std::span<const TokenId> added);
  size_t settled() const;

  const Tokenizer* tokenizer_;
  std::span<const std::string> stops_;
  std::string text_ = {};  // of the tokens before read_
  // Tokens [window_, read_) are decoded again with those that follow, because what a token writes
  // can depend on the one before it.
  size_t window_ = 0, read_ = 0;
  size_t returned_ = 0;  // bytes
  std::optional<size_t> stop_ = {};
};

}  // namespace longshore
