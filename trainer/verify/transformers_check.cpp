#include "trainer/verify/transformers_check.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "base/child_process.h"
#include "base/errors.h"
#include "base/json.h"
#include "base/texts.h"
#include "hf/safetensors_reader.h"
#include "hf/weight_loader.h"
#include "verify/transformers_script.h"

namespace longshore {
namespace {

namespace fs = std::filesystem;

// transformers computes in fp32 from its own previous layer, so differences grow with depth. A
// misread switch changes the numbers by a hundredth or more.
constexpr Tolerance kOwnInputs = {.of_change = 5e-4, .of_size = 1e-5};

// A temporary directory that is removed with its contents.
class ScratchDirectory {
 public:
  ScratchDirectory() : path_((fs::temp_directory_path() / "longshore-verify-XXXXXX").string()) {
    if (::mkdtemp(path_.data()) == nullptr) throw IoError("making a directory", path_, errno);
  }
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;
  ~ScratchDirectory() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// Returns the last non-blank line, which contains the message of a Python exception.
std::string last_line(const std::string& text) {
  std::istringstream lines(text);
  std::string last;
  for (std::string line; std::getline(lines, line);) {
    if (line.find_first_not_of(" \t\r") != std::string::npos) last = line;
  }
  return last.empty() ? "it printed nothing" : last;
}

at::Tensor read_tensor(const SafetensorsFile& file, const std::string& name) {
  const TensorInfo& tensor = file.tensor(name);
  at::Tensor values = at::empty(tensor.shape, at::kFloat);
  read_elements(file, tensor, 0,
                {values.mutable_data_ptr<float>(), static_cast<size_t>(values.numel())});
  return values;
}

void judge_states(double apart, const std::string& subject, Findings& findings) {
  judge(apart, {"transformers", subject, "the same numbers", "other numbers"}, findings);
}

void compare(const SafetensorsFile& file, const PlainStates& states, Findings& findings) {
  for (size_t step = 0; step < states.hidden.at(0).size(); ++step) {
    double apart = 0.0;
    for (size_t text = 0; text < states.hidden.size(); ++text) {
      const at::Tensor& wanted = states.hidden[text][step];
      const at::Tensor found = read_tensor(file, std::to_string(text) + "." + std::to_string(step));
      const at::Tensor before = step == 0 ? at::zeros_like(wanted) : states.hidden[text][0];
      apart = worse(apart, excess(found, wanted, before, kOwnInputs));
    }
    judge_states(apart, step == 0 ? "embedding" : "block." + std::to_string(step - 1), findings);
  }
  double apart = 0.0;
  for (size_t text = 0; text < states.last_logits.size(); ++text) {
    const at::Tensor wanted = states.last_logits[text].unsqueeze(0);
    const at::Tensor found = read_tensor(file, std::to_string(text) + ".logits").unsqueeze(0);
    apart = worse(apart, excess(found, wanted, at::zeros_like(wanted), kOwnInputs));
  }
  judge_states(apart, "head", findings);
}

}  // namespace

void check_transformers(const std::string& python, const std::string& directory, const Texts& texts,
                        const PlainStates& states, Findings& findings) {
  const ScratchDirectory scratch;
  const std::string out = scratch.file("states.safetensors");
  const size_t layers = states.hidden.at(0).size() - 1;
  const ChildEnd end = run_child({python, "-c", kTransformersScript, directory,
                                  std::to_string(layers), Json(texts).dump(), out});
  if (!end.good()) {
    findings.add(Verdict::kFailed, "transformers", python,
                 "could not be run, " + end.text() +
                     (end.not_started.empty() ? ": " + printable(last_line(end.output), 400) : ""));
    return;
  }
  compare(SafetensorsFile::open(out), states, findings);
}

}  // namespace longshore
