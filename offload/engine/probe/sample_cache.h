// SampleCache: what probes measured, kept on disk from one process to the next. One file for each
// key, JSON; what cannot be read, or is of another key, is as good as not there. Any number of
// processes at once: a file is replaced whole. Never throws: a cache that cannot be written keeps
// nothing.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "offload/engine/probe/workspace_fit.h"

namespace longshore {

// Samples as text and back. nullopt for any text that is not of samples of exactly `inputs`.
std::string samples_to_text(const std::string& key, const std::vector<ProbeSample>& samples);
std::optional<std::vector<ProbeSample>> samples_of_text(const std::string& text,
                                                        const std::string& key);

class SampleCache {
 public:
  // Empty: nothing is kept.
  explicit SampleCache(std::string directory) : directory_(std::move(directory)) {}
  // `key`: all that the samples depend on.
  std::optional<std::vector<ProbeSample>> find(const std::string& key) const;
  void keep(const std::string& key, const std::vector<ProbeSample>& samples) const;

 private:
  std::string path_of(const std::string& key) const;
  std::string directory_;
};

}  // namespace longshore
