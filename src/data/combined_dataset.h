// CombinedDataset: the documents of several files as one set, each file as often as its weight
// says, with or without those that are held out for evaluation. Immutable; any thread may read.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "data/dataset.h"

namespace longshore {

// Rows of every file that are held out: chosen by the seed, the same in both parts. The documents
// of a row stay together.
struct HoldOut {
  enum class Part : uint8_t { kEverything, kTrained, kHeldOut };
  Part part = Part::kEverything;
  double fraction = 0.0;  // of each file's rows; at least one where it is above 0
  uint64_t seed = 0;
};

class CombinedDataset : public Dataset {
 public:
  // `weights`: one for each file, or empty. 2.5 = every row twice, and a half of them, chosen by
  // `hold_out.seed`, once more. DataError where no document is left.
  CombinedDataset(std::vector<std::shared_ptr<const Dataset>> files,
                  const std::vector<double>& weights, const HoldOut& hold_out);

  int64_t document_count() const override { return count_; }
  int64_t document_tokens(int64_t document) const override;
  int64_t document_trained_tokens(int64_t document) const override;
  void append_document(int64_t document, std::vector<int64_t>& tokens,
                       std::vector<int64_t>& targets) const override;
  bool row_goes_on(int64_t document) const override;
  uint64_t fingerprint() const override { return fingerprint_; }

 private:
  struct Place {
    const Dataset* file;
    int64_t document;
  };
  // The documents of one file, in order; `chosen` empty: all of them.
  struct Part {
    std::shared_ptr<const Dataset> file;  // shared: a file may be trained and evaluated on
    std::vector<int64_t> chosen;
    bool all = false;
    int64_t begin = 0;  // the first one's number in the whole set
  };
  Place place_of(int64_t document) const;

  std::vector<Part> parts_;
  int64_t count_ = 0;
  uint64_t fingerprint_ = 0;
};

}  // namespace longshore
