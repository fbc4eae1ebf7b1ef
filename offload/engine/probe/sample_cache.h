// SampleCache: probe results on disk, shared by processes. One JSON file for each key; a file that
// is unreadable or of another key counts as absent. Processes may use it concurrently, because
// files are replaced atomically. It never throws; if it cannot write, it caches nothing.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "offload/engine/probe/workspace_fit.h"

namespace longshore {

// Convert samples to text and back; nullopt if the text is not of samples of this key.
std::string samples_to_text(const std::string& key, const std::vector<ProbeSample>& samples);
std::optional<std::vector<ProbeSample>> samples_of_text(const std::string& text,
                                                        const std::string& key);

class SampleCache {
 public:
  // An empty directory disables the cache.
  explicit SampleCache(std::string directory) : directory_(std::move(directory)) {}
  // `key` contains everything that the samples depend on.
  std::optional<std::vector<ProbeSample>> find(const std::string& key) const;
  void keep(const std::string& key, const std::vector<ProbeSample>& samples) const;

 private:
  std::string path_of(const std::string& key) const;
  std::string directory_;
};

}  // namespace longshore
