// Data sets: documents as token ids with targets, in memory or in prepared files, from one file or
// several. Immutable once built; any thread may read.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/columns.h"
#include "base/hash.h"
#include "data/tokens/file_mix.h"
#include "text/tokenizer.h"

namespace longshore {

// Dataset: documents as token ids with targets, in memory or in prepared files. Immutable once
// built; any thread may read.

// The target of an untrained position.
inline constexpr TokenId kNotTrained = -100;

class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual int64_t document_count() const = 0;
  // Returns the tokens of a document, at least 1.
  virtual int64_t document_tokens(int64_t document) const = 0;
  // Returns the positions of a document that have a target, at least 1.
  virtual int64_t document_trained_tokens(int64_t document) const = 0;
  // Appends the document's tokens and one target per token: the label of the next token (the token
  // to predict), or kNotTrained. The last position's target is kNotTrained.
  virtual void append_document(int64_t document, std::vector<int64_t>& tokens,
                               std::vector<int64_t>& targets) const = 0;
  // Returns true if the document and the one before come from the same row of the data. Such
  // documents are held out, and repeated, together.
  virtual bool row_goes_on(int64_t /*document*/) const { return false; }
  // Returns false for an answer that people rejected.
  virtual bool is_desirable(int64_t /*document*/) const { return true; }
  // Returns whether documents have this column. Then column_of() returns width_of() values for each
  // token of a document, which belong to the token's target.
  virtual bool has_column(ColumnId) const { return false; }
  virtual size_t width_of(ColumnId) const { return 1; }
  virtual std::vector<float> column_of(int64_t /*document*/, ColumnId) const { return {}; }
  // Returns a hash that is equal for equal documents in equal order. Resuming compares it to detect
  // changed data.
  virtual uint64_t fingerprint() const = 0;
};

// Returns the first document of each row, followed by the number of documents.
std::vector<int64_t> row_starts(const Dataset& dataset);

// CombinedDataset: the documents of several files, each file repeated by its weight or as a mix of
// the files asks for, with or without the held-out part. Immutable; any thread may read. Files that
// are not read exactly once take 8 bytes of memory for each of their documents in the set.

// HoldOut: selects the rows of every file that are held out for evaluation. The seed selects them,
// so training and evaluation agree. Documents of one row stay together.
struct HoldOut {
  enum class Part : uint8_t { kEverything, kTrained, kHeldOut };
  Part part = Part::kEverything;
  double fraction = 0.0;  // of each file's rows; at least one if it is above 0
  uint64_t seed = 0;
};

// Returns the numbers of the rows that belong to the part, of the `count` rows of a file.
std::vector<int64_t> rows_of_part(int64_t count, const HoldOut& hold_out, int64_t file);

class CombinedDataset : public Dataset {
 public:
  // `weights` has one value per file, or is empty. With a weight of 2.5 every row occurs twice, and
  // half of the rows, selected by `hold_out.seed`, once more. With `mix` there are no weights, and
  // files are repeated in the same way. Documents are numbered file by file; with `mix.spread` row
  // j of the n rows of a file is at (j + 1/2) / n of the set. Throws DataError if no document is
  // left, ConfigError if the files cannot be mixed so.
  CombinedDataset(std::vector<std::shared_ptr<const Dataset>> files,
                  const std::vector<double>& weights, const HoldOut& hold_out,
                  const FileMix& mix = {});

  int64_t document_count() const override { return count_; }
  int64_t document_tokens(int64_t document) const override;
  int64_t document_trained_tokens(int64_t document) const override;
  void append_document(int64_t document, std::vector<int64_t>& tokens,
                       std::vector<int64_t>& targets) const override;
  bool row_goes_on(int64_t document) const override;
  bool is_desirable(int64_t document) const override;
  // Documents of files without the column have its default.
  bool has_column(ColumnId column) const override;
  size_t width_of(ColumnId column) const override;
  std::vector<float> column_of(int64_t document, ColumnId column) const override;
  uint64_t fingerprint() const override { return fingerprint_; }
  // The rows of each file that belong to the part, and how many the set has of them. Both are empty
  // for whole files without weights and without a mix, whose rows nobody has to count.
  std::span<const int64_t> rows() const { return rows_; }
  std::span<const int64_t> rows_read() const { return rows_read_; }

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
  // Returns the documents of all parts in the order of a spread set. Used before order_ is set.
  std::vector<int64_t> spread_order() const;

  std::vector<Part> parts_;
  std::vector<int64_t> rows_, rows_read_;  // by file
  std::vector<int64_t> order_;             // of a spread set; empty: the parts one after the other
  int64_t count_ = 0;
  uint64_t fingerprint_ = 0;
};

// MismatchedDataset: the prompt of each document of another set with the answer of a document
// before it ([Note: preference losses]). Immutable; any thread may read.
//
// The pairing depends only on the order of the data. Rows form groups of at least `group` documents
// and two rows; within a group each row's prompt gets the answer of the row before it, the first
// row's that of the last. A pair passes on both of its answers. An answer begins at the first
// trained position.

class MismatchedDataset : public Dataset {
 public:
  // `rows` must outlive this set, and its documents have at most `max_tokens` tokens, to which
  // mismatched ones are cut. Throws DataError if there is only one row.
  MismatchedDataset(const Dataset* rows, int64_t group, int64_t max_tokens);

  int64_t document_count() const override { return rows_->document_count(); }
  int64_t document_tokens(int64_t document) const override;
  int64_t document_trained_tokens(int64_t document) const override;
  void append_document(int64_t document, std::vector<int64_t>& tokens,
                       std::vector<int64_t>& targets) const override;
  bool row_goes_on(int64_t document) const override { return rows_->row_goes_on(document); }
  uint64_t fingerprint() const override;

 private:
  const Dataset* rows_;
  int64_t max_tokens_;
  std::vector<int64_t> prompts_;   // tokens before the answer, by document
  std::vector<int64_t> partners_;  // the document whose answer it gets, by document
};

// InMemoryDataset: documents in two flat arrays, 8 bytes per token. One thread adds documents, then
// any thread may read.

class InMemoryDataset : public Dataset {
 public:
  InMemoryDataset() = default;

  // labels[t] is the Hugging Face label of tokens[t]; this function shifts labels to targets.
  // Returns the number of trained positions; a document without any is not added.
  int64_t add(std::span<const TokenId> tokens, std::span<const TokenId> labels);

  int64_t document_count() const override { return static_cast<int64_t>(trained_.size()); }
  int64_t document_tokens(int64_t document) const override;
  int64_t document_trained_tokens(int64_t document) const override;
  void append_document(int64_t document, std::vector<int64_t>& tokens,
                       std::vector<int64_t>& targets) const override;
  uint64_t fingerprint() const override { return hasher_.digest(); }

 private:
  void check_index(int64_t document) const;

  std::vector<TokenId> tokens_;
  std::vector<TokenId> targets_;
  std::vector<int64_t> starts_ = {0};  // one entry more than documents
  std::vector<int32_t> trained_;
  Hasher hasher_;
};

}  // namespace longshore
