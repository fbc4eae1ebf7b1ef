// TokenFileWriter: makes a token file piece by piece, in a directory of its own from which a later
// process goes on after a kill. One owner thread; the owner holds the entry's lock.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "data/token_file.h"

namespace longshore {

// Documents end to end, on their way into a file.
struct TokenBlock {
  std::vector<TokenId> ids;
  std::vector<uint8_t> trained;     // one for each id: a target is learned there
  std::vector<uint64_t> lengths;    // of the documents
  std::vector<size_t> rows_go_on;   // documents of the same row as the one before, ascending
  std::vector<OtherTarget> others;  // `token` counts from the block's first id
};

class TokenFileWriter {
 public:
  // Goes on where the last `save` left off, if there was one. A directory in another state is
  // emptied.
  explicit TokenFileWriter(std::string directory);

  // What the last `save` was given; null when there was none.
  const Json& saved_state() const { return state_; }
  void append(const TokenBlock& block);
  // Everything appended so far, and `state`, survive a kill after this.
  void save(const Json& state);
  // Writes the whole file, durably and under its name at once, and removes the directory. `header`
  // needs vocabulary_size, tokenizer_fingerprint and key only.
  void finish(const std::string& path, TokenFileHeader header, const std::string& report);
  uint64_t tokens() const { return totals_.tokens; }
  uint64_t trained_tokens() const { return totals_.trained_tokens; }
  uint64_t documents() const { return totals_.documents; }

 private:
  // One growing file of elements.
  struct Part {
    UniqueFd fd;
    std::string buffer;
    Bytes bytes = 0;  // the buffer's included
    void append(std::span<const std::byte> elements);
    void flush();
  };
  enum PartId : size_t { kIds, kTrained, kEnds, kOthers, kParts };

  bool resume();
  void begin_anew();
  std::string part_path(size_t part) const;

  std::string directory_;
  Json state_ = nullptr;
  std::array<Part, kParts> parts_;
  TokenFileHeader totals_;  // counts only
};

}  // namespace longshore
