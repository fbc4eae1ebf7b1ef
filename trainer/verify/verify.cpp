#include "trainer/verify/verify.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <sstream>

#include "base/bytes.h"
#include "base/errors.h"
#include "base/texts.h"
#include "model/families/families.h"
#include "trainer/model/model_notes.h"
#include "trainer/model/model_source.h"
#include "trainer/verify/number_check.h"
#include "trainer/verify/tensor_check.h"
#include "trainer/verify/text_check.h"
#include "trainer/verify/transformers_check.h"

namespace longshore {
namespace {

RunConfig config_of(const std::string& model) {
  RunConfig config;
  config.model.path = model;
  config.precision.compute = DType::kF32;  // the checks compare values in fp32
  return config;
}

// Adds one result for each line of `text`.
void add_problems(const std::string& text, const std::string& subject, Findings& findings) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    findings.add(Verdict::kFailed, "files", subject, line);
  }
}

// Returns null if the directory is unusable, and adds the reasons to `findings`.
std::unique_ptr<ModelSource> open_source(const std::string& model, Findings& findings) {
  try {
    return std::make_unique<ModelSource>(config_of(model));
  } catch (const Error& error) {
    add_problems(error.what(), model, findings);
  }
  return nullptr;
}

// Checks tokenizer and template of a directory whose weights are unusable.
void check_without_weights(const std::string& model, Findings& findings) {
  try {
    const ModelDirectory directory =
        ModelDirectory::open(model, ModelDirectory::Weights::kOptional);
    const ArchSpec arch = read_arch_spec(directory.config(), directory.path_of("config.json"));
    check_texts(directory.path(), arch, findings);
  } catch (const Error&) {
    // open_source reported it already.
  }
}

// Describes a window or RoPE change that the texts are too short to reach.
std::string unreached(const ArchSpec& arch, int64_t layers, int64_t tokens) {
  int64_t longest = 0;
  for (int64_t i = 0; i < layers; ++i) {
    longest = std::max(longest, arch.layers[static_cast<size_t>(i)].window);
  }
  if (arch.rope.scaling == RopeSpec::Scaling::kLong) {
    longest = std::max(longest, arch.rope.original_max_positions);
  }
  if (longest < tokens) return {};
  return "; a window or a change of rope after " + std::to_string(longest) +
         " positions is beyond them (--tokens)";
}

void check_first_layers(const ModelSource& source, const VerifyOptions& options,
                        Findings& findings) {
  const ArchSpec& arch = source.arch();
  const int64_t layers =
      options.layers == 0 ? arch.layer_count() : std::min(options.layers, arch.layer_count());
  int64_t tokens = options.tokens;
  if (arch.max_positions > 0) tokens = std::min(tokens, arch.max_positions);
  const Texts texts = sample_texts(source.directory().path(), arch, tokens);
  const PlainStates states = check_numbers(source, texts, layers, findings);
  findings.add(Verdict::kOk, "layers",
               std::to_string(layers) + " of " + std::to_string(arch.layer_count()) + " layers",
               "run on texts of up to " + std::to_string(tokens) + " tokens" +
                   unreached(arch, layers, tokens));
  if (options.python.empty()) {
    findings.add(Verdict::kSkipped, "transformers", "--python",
                 "no Python was named: how config.json is read was not compared with transformers");
    return;
  }
  check_transformers(options.python, source.directory().path(), texts, states, findings);
}

void describe_files(const ModelSource& source, Findings& findings) {
  const ModelDirectory& directory = source.directory();
  findings.add(Verdict::kOk, "files",
               std::to_string(directory.files().size()) + " weight file" +
                   (directory.files().size() == 1 ? "" : "s"),
               source.arch().family + ", " + format_count(source.spec().parameter_elements()) +
                   " parameters, " + format_bytes(directory.weight_bytes()) +
                   (source.spec().units.back().tied.empty() ? "" : ", head tied"));
  int64_t used = 0;
  for (const UnitSpec& unit : source.spec().units) {
    used += static_cast<int64_t>(unit.parameters.size());
  }
  const int64_t beside = static_cast<int64_t>(directory.tensors().size()) - used;
  if (beside > 0) {
    findings.add(Verdict::kOk, "files", std::to_string(beside) + " tensors",
                 "are no parameters of the text model: buffers, or another tower's; exports keep "
                 "them");
  }
  for (const std::string& warning : directory.warnings()) {
    findings.add(Verdict::kWarning, "files", directory.path(), warning);
  }
  for (const std::string& note : model_notes(source)) {
    findings.add(Verdict::kWarning, "files", directory.path(), note);
  }
  const std::vector<std::string>& unread = source.arch().unread_keys;
  if (!unread.empty()) {
    findings.add(Verdict::kWarning, "files", "config.json",
                 "these keys are not read, nor are they known to change nothing: " +
                     printable(joined(unread, ", ")));
  }
}

}  // namespace

Findings verify_model(const VerifyOptions& options) {
  Findings findings;
  const std::unique_ptr<ModelSource> source = open_source(options.model, findings);
  if (source == nullptr) {
    check_without_weights(options.model, findings);
    return findings;
  }
  describe_files(*source, findings);
  check_tensors(*source, findings);
  check_exported(source->directory(), findings);
  if (options.against.empty()) {
    findings.add(Verdict::kSkipped, "base", "--against",
                 "no other model was named: matrices that are swapped, or square and transposed, "
                 "cannot be detected");
  } else if (const auto base = open_source(options.against, findings)) {
    compare_with_base(*source, *base, findings);
  }
  check_texts(source->directory().path(), source->arch(), findings);
  check_first_layers(*source, options, findings);
  return findings;
}

}  // namespace longshore
