// TokenFileWriter: writes a token file in pieces, in its own directory, from which another process
// can resume after a kill. One owner thread; the owner holds the entry's lock.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "data/tokens/token_file.h"

namespace longshore {

// TokenBlock: adjacent documents that are about to be written.
struct TokenBlock {
  std::vector<TokenId> ids;
  std::vector<uint8_t> trained;     // one for each id: 1 if its target is learned
  std::vector<uint64_t> lengths;    // of the documents
  std::vector<size_t> rows_go_on;   // documents of the same row as the one before, ascending
  std::vector<size_t> undesirable;  // documents that people rejected
  std::vector<OtherTarget> others;  // `token` counts from the block's first id
  ColumnValues columns;             // of each id's target
};

class TokenFileWriter {
 public:
  // Resumes from the last `save` if there was one; the bytes written until then are read and
  // compared, with regular calls of `report_progress`. Otherwise the directory is removed and made
  // again.
  TokenFileWriter(std::string directory, const std::function<void()>& report_progress);

  // Returns the argument of the last `save`; null if there was none.
  const Json& saved_state() const { return state_; }
  void append(const TokenBlock& block);
  // On return everything appended so far, and `state`, survive a kill.
  void save(const Json& state);
  // Writes the whole file durably, renames it to `path` atomically, and removes the directory.
  // `header` needs only vocabulary_size, tokenizer_fingerprint and key.
  void finish(const std::string& path, TokenFileHeader header, const std::string& report);
  uint64_t tokens() const { return totals_.tokens; }
  uint64_t trained_tokens() const { return totals_.trained_tokens; }
  uint64_t documents() const { return totals_.documents; }

 private:
  // Part: a growing file of elements of one kind.
  struct Part {
    UniqueFd fd;
    std::string buffer;
    Bytes bytes = 0;  // with those in the buffer
    Hasher hasher;    // of those in the file
    void append(std::span<const std::byte> elements);
    void flush();
  };
  enum PartId : size_t {
    kIds,
    kTrained,
    kEnds,
    kOthers,
    kColumns,
    kParts = kColumns + kTokenColumns
  };

  // Returns why the directory cannot be used; "" if the writer resumes from it.
  std::string resume(const std::function<void()>& report_progress);
  void resume_parts(const Json& progress, const std::function<void()>& report_progress);
  void begin_anew();
  std::string part_path(size_t part) const;
  void append_columns(const TokenBlock& block);

  std::string directory_;
  Json state_ = nullptr;
  std::array<Part, kParts> parts_;
  TokenFileHeader totals_;  // counts only
};

}  // namespace longshore
