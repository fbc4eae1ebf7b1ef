// ProblemList: collects the problems of untrusted files, to report all at once. It keeps the first
// 20 lines and counts the rest, so that a hostile file cannot make it grow. Plain value.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/errors.h"
#include "base/texts.h"

namespace longshore {

class ProblemList {
 public:
  void add(std::string line) {
    if (++count_ <= kMaxLines) lines_.push_back(std::move(line));
  }
  bool empty() const { return count_ == 0; }

  // Throws a DataError with one line per problem; returns if there is none.
  void throw_if_any() const {
    if (count_ == 0) return;
    std::string text = joined(lines_, "\n");
    if (count_ > kMaxLines) text += "\nand " + std::to_string(count_ - kMaxLines) + " more";
    throw DataError(text);
  }

 private:
  static constexpr int64_t kMaxLines = 20;
  std::vector<std::string> lines_;
  int64_t count_ = 0;
};

}  // namespace longshore
