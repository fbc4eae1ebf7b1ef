// FileMix: how files are mixed by probability, and how many rows of each make an epoch. Plain value
// and pure functions of numbers of rows; any thread.
//
// The rows of an epoch are known before the first step: N rows, of which an entry with probability
// p has p N, rounded. With "exhaust" N is the least number of rows over p of the entries, so one
// entry is read once and none twice. With "restart" it is the largest, so one entry is read once
// and the others begin again. Nothing is drawn but the rows of an incomplete pass.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "config/run_config.h"

namespace longshore {

struct FileMix {
  // Entry: one of data.train; a hub id may have several files, which are read alike.
  struct Entry {
    std::string name;
    size_t files = 1;
  };
  DataSection::Mix rule = DataSection::Mix::kConcat;
  std::vector<Entry> entries;         // their files are those of the set, in order
  std::vector<double> probabilities;  // by entry, with a sum of about 1; empty: equal ones
  bool spread = false;                // the set's own order alternates between the files

  bool on() const { return rule != DataSection::Mix::kConcat; }
};

// How often the rows of a file are read in an epoch at most; data.weights has the same limit.
inline constexpr int64_t kMostReads = 1000;

// Returns the rows of each file in an epoch, repeated ones counted. `rows` has those that may be
// read, by file. Throws ConfigError for an entry without rows, of which no row would be read, or
// that would be read more than kMostReads times.
std::vector<int64_t> mixed_rows(const FileMix& mix, std::span<const int64_t> rows);

// Returns a line with the rows of each entry in an epoch; `read` is the result for `rows`.
std::string mix_text(const FileMix& mix, std::span<const int64_t> rows,
                     std::span<const int64_t> read);

}  // namespace longshore
