// CombinedDataset: the documents of several files, each file repeated by its weight, with or
// without the held-out part. Immutable; any thread may read.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "data/dataset.h"

namespace longshore {

// HoldOut: selects the rows of every file that are held out for evaluation. The seed selects them,
// so training and evaluation agree. Documents of one row stay together.
struct HoldOut {
  enum class Part : uint8_t { kEverything, kTrained, kHeldOut };
  Part part = Part::kEverything;
  double fraction = 0.0;  // of each file's rows; at least one if it is above 0
  uint64_t seed = 0;
};

class CombinedDataset : public Dataset {
 public:
  // `weights` has one value per file, or is empty. A weight of 2.5 takes every row twice, and half
  // of the rows, selected by `hold_out.seed`, once more. Throws DataError if no document is left.
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
  // Part: the selected documents of one file, in order. If `all` is set, `chosen` is empty.
  struct Part {
    std::shared_ptr<const Dataset> file;  // shared: a file may be trained and evaluated on
    std::vector<int64_t> chosen;
    bool all = false;
    int64_t begin = 0;  // number of its first document in the combined set
  };
  Place place_of(int64_t document) const;

  std::vector<Part> parts_;
  int64_t count_ = 0;
  uint64_t fingerprint_ = 0;
};

}  // namespace longshore
