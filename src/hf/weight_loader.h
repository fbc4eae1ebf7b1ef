// WeightLoader: reads a model's parameter values from a Hugging Face directory by element ranges,
// so that each rank reads only its own shard pieces. Values become fp32 exactly. Rows that a run
// adds to a table (ParamSpec::added_rows) are the mean of the table's rows in the file. Reading is
// const and safe from several threads; each call holds one bounded chunk.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "hf/model_directory.h"
#include "shard/unit_spec.h"

namespace longshore {

// Matches tensors in a family's files that its model does not use (gpt2's causal masks).
struct SkipRule {
  std::string prefix;  // the tensor's name begins with it and
  std::string suffix;  // ends with it; at most one may be empty
  std::string reason;  // "causal mask buffer"

  bool matches(std::string_view name) const;
};

class WeightLoader {
 public:
  // Throws one DataError with every mismatch: parameters, except those of adapters, that are
  // missing or have another shape or type, and tensors that are neither parameters nor skipped.
  // `directory` must outlive this.
  WeightLoader(const ModelDirectory& directory, const ModelSpec& spec,
               const std::vector<SkipRule>& skip_rules);

  // Reads elements [element_begin, element_begin + out.size()) of a parameter in row-major order.
  // The first call that reaches an added row reads the whole table once.
  void read_parameter(const std::string& name, int64_t element_begin, std::span<float> out) const;
  DType stored_dtype(const std::string& name) const;
  // Returns the parameter's tensor in the files.
  ModelDirectory::TensorRef at(const std::string& name) const;
  // Returns the names of the tensors that a rule skipped.
  const std::vector<std::string>& skipped() const { return skipped_; }

 private:
  // Returns the values of each added row of a table.
  const std::vector<float>& mean_row(const std::string& name) const;

  std::unordered_map<std::string, ModelDirectory::TensorRef> parameters_;
  std::unordered_map<std::string, int64_t> added_elements_;  // of tables with added rows
  std::vector<std::string> skipped_;
  mutable Mutex mutex_;
  // By the name of the table, as they are needed; an entry does not change.
  mutable std::map<std::string, std::vector<float>> means_ LONGSHORE_GUARDED_BY(mutex_);
};

// Reads elements of a stored F32, BF16 or F16 tensor as fp32, exactly.
void read_elements(const SafetensorsFile& file, const TensorInfo& tensor, int64_t element_begin,
                   std::span<float> out);
// Reads elements of a directory's tensor, which may be packed, as fp32, exactly.
void read_elements(const ModelDirectory::TensorRef& ref, int64_t element_begin,
                   std::span<float> out);

}  // namespace longshore
