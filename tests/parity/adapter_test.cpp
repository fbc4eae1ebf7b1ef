// Runs that train an adapter agree with PEFT and torch.optim.AdamW, and their exports are adapters
// as PEFT writes them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <set>

#include "hf/safetensors_reader.h"
#include "tests/fakes/command_run.h"
#include "tests/fakes/gpu.h"
#include "tests/fakes/sketch.h"
#include "tests/fakes/test_files.h"
#include "tests/parity/run_driver.h"

namespace longshore {
namespace {

using Tensors = std::map<std::string, std::vector<float>>;

const std::string kPeftPrefix = "base_model.model.";
const std::string kA = ".lora_A.weight";
const std::string kB = ".lora_B.weight";
const std::string kMagnitude = ".lora_magnitude_vector";
const std::string kTiedTable = "model.embed_tokens.weight", kTiedHead = "lm_head.weight";
const std::string kLookupA = ".lora_embedding_A";
const std::string kLookupB = ".lora_embedding_B";

// Returns the name in transformers of a parameter of the files: mixtral's experts and router are
// parts of the mlp there, a wrapper's text tower is inside of its model, and Nemotron-H's backbone
// is the model.
std::string published(std::string name) {
  for (const auto& [old, now] : {std::pair("block_sparse_moe", "mlp"),
                                 {"backbone.", "model."},
                                 std::pair("language_model.model.", "model.language_model.")}) {
    const size_t at = name.find(old);
    if (at != name.npos) name.replace(at, std::strlen(old), now);
  }
  return name;
}

// Returns the checkpoint's state by the names of transformers.
Tensors published_state(const RunDriver& run) {
  Tensors state;
  for (auto& [name, values] : run.state()) state[published(name)] = values;
  return state;
}

// Returns the name in a checkpoint of a tensor of PEFT's file, which has the bias of an adapted
// module inside of its wrapper.
std::string unwrapped(std::string name) {
  const std::string end = ".base_layer.bias";
  if (name.ends_with(end)) name.replace(name.size() - end.size(), end.size(), ".bias");
  return name;
}

// AdapterCase: one directory of golden_adapter: what the run starts from and what PEFT made of it.
struct AdapterCase {
  explicit AdapterCase(const std::string& name)
      : directory(adapter_golden_directory(name)),
        facts(read_json_file(directory + "/golden.json", JsonLimits{})),
        base(facts.at("base").get<std::string>()),
        sketches(read_sketches(directory + "/golden_sketches.json")) {}

  // Every other setting comes from the adapter's own adapter_config.json.
  Arguments arguments() const {
    return joined(RunDriver::golden_arguments(base),
                  {"--adapter.path=\"" + directory + "/adapter\"",
                   "--optimizer.lr=" + facts.at("adamw").at("lr").dump(),
                   "--optimizer.eps=" + facts.at("adamw").at("eps").dump()});
  }
  // Returns whether an embedding is trained that is also the head.
  bool tied() const { return sketches.contains("final." + kPeftPrefix + kTiedHead); }
  bool dora() const { return facts.at("adapter").at("use_dora").get<bool>(); }
  // Returns the number of experts of a layer; 0: the model has none.
  size_t experts() const {
    const Json config = read_json_file(golden_directory(base) + "/config.json", JsonLimits{});
    for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts"}) {
      if (config.contains(key)) return config.at(key).get<size_t>();
    }
    return 0;
  }
  // A checkpoint has B of all experts by expert, and A of an embedding by token; PEFT's file has
  // them by output, rank, then expert, and by rank, then token.
  std::vector<float> as_in_file(const std::string& name, std::vector<float> values) const {
    const bool of_all = name.find(".experts.") != std::string::npos && name.ends_with(kB);
    if (!of_all && !name.ends_with(kLookupA)) return values;
    const std::vector<float> stored = values;
    const size_t rank = facts.at("adapter").at("r").get<size_t>();
    const size_t count = of_all ? experts() : stored.size() / rank, matrix = stored.size() / count;
    for (size_t i = 0; i < stored.size(); ++i) {
      values[i] = stored.at(i % count * matrix + i / count);
    }
    return values;
  }
  // Returns rank and alpha that PEFT gave to a module, whose name is that of the file.
  std::pair<size_t, double> size_of(const std::string& module) const {
    const Json& settings = facts.at("adapter");
    const Json sizes = facts.value("sizes", Json::object());
    const Json& own = sizes.contains(module) ? sizes.at(module) : settings;
    return {own.at("r").get<size_t>(), own.at("lora_alpha").get<double>()};
  }
  // Returns the sketches whose names begin so, without that beginning.
  std::map<std::string, Sketch> part(const std::string& beginning) const {
    std::map<std::string, Sketch> found;
    for (const auto& [name, sketch] : sketches) {
      if (name.starts_with(beginning)) found[name.substr(beginning.size())] = sketch;
    }
    return found;
  }

  std::string directory;
  Json facts;
  std::string base;
  std::map<std::string, Sketch> sketches;
};

std::map<std::string, std::vector<int64_t>> shapes_of(const std::string& path) {
  std::map<std::string, std::vector<int64_t>> shapes;
  const SafetensorsFile file = SafetensorsFile::open(path);
  for (const TensorInfo& tensor : file.tensors()) shapes[tensor.name] = tensor.shape;
  return shapes;
}

// Losses, gradient norms and the final adapter agree within the tolerances of full training; PEFT's
// own run in fp64 is within 1.3e-6, 3.6e-5 and 2.4e-5 of its run in fp32 (golden.json).
void expect_peft(const AdapterCase& golden, const RunDriver& run) {
  const Json& expected = golden.facts.at("runs").at("free");
  const std::vector<double> losses = run.steps("loss"), norms = run.steps("grad_norm");
  ASSERT_EQ(losses.size(), expected.at("loss").size());
  for (size_t i = 0; i < losses.size(); ++i) {
    const double loss = expected.at("loss")[i].get<double>();
    const double norm = expected.at("grad_norm")[i].get<double>();
    EXPECT_LE(std::abs(losses[i] - loss), 3e-5 * loss) << golden.directory << " step " << i + 1;
    EXPECT_LE(std::abs(norms[i] - norm), 1e-4 * norm) << golden.directory << " step " << i + 1;
  }
  const Tensors state = published_state(run);
  std::map<std::string, Sketch> final_values = golden.part("final." + kPeftPrefix);
  if (golden.tied()) {  // PEFT's file has the embedding a second time
    EXPECT_EQ(final_values.at(kTiedHead), final_values.at(kTiedTable));
    final_values.erase(kTiedHead);
  }
  for (const auto& [name, sketch] : final_values) {
    const auto mine = state.find(unwrapped(name) + ".master");
    ASSERT_NE(mine, state.end()) << name;
    EXPECT_LE(relative_error(golden.as_in_file(name, mine->second), sketch), 1e-4)
        << golden.directory << " " << name;
  }
  // Nothing else is trained.
  EXPECT_EQ(final_values.size() * 3, state.size());
}

std::set<std::string> names_in(const Json& list) {
  if (list.is_null()) return {};
  return list.get<std::set<std::string>>();
}

// The export is the adapter alone, with the tensors of PEFT's file and its settings.
void expect_peft_files(const AdapterCase& golden, const RunDriver& run) {
  const std::string hf = run.directory() + "/hf", weights = "/adapter_model.safetensors";
  EXPECT_FALSE(std::filesystem::exists(hf + "/model.safetensors"));
  EXPECT_EQ(shapes_of(hf + weights), shapes_of(golden.directory + "/adapter" + weights));
  const Tensors state = published_state(run);
  for (const auto& [name, values] : read_tensors(hf + weights)) {
    const std::string own = unwrapped(name.substr(kPeftPrefix.size()));
    const std::string& trained = golden.tied() && own == kTiedHead ? kTiedTable : own;
    EXPECT_EQ(values, golden.as_in_file(name, state.at(trained + ".master"))) << name;
  }
  const Json mine = read_json_file(hf + "/adapter_config.json", JsonLimits{});
  const Json& settings = golden.facts.at("adapter");
  EXPECT_EQ(mine.at("peft_type"), "LORA");
  EXPECT_EQ(mine.at("ensure_weight_tying"), golden.tied());
  EXPECT_EQ(mine.at("task_type"), "CAUSAL_LM");
  EXPECT_EQ(mine.at("bias"), settings.value("bias", "none"));
  for (const char* key : {"r", "lora_alpha", "use_dora", "use_rslora", "fan_in_fan_out"}) {
    EXPECT_EQ(mine.at(key), settings.at(key)) << key;
  }
  for (const char* key : {"rank_pattern", "alpha_pattern"}) {
    EXPECT_EQ(
        mine.at(key),
        read_json_file(golden.directory + "/adapter/adapter_config.json", JsonLimits{}).at(key));
  }
  for (const char* key : {"target_modules", "target_parameters", "modules_to_save"}) {
    EXPECT_EQ(names_in(mine.at(key)), names_in(settings.value(key, Json()))) << key;
  }
  EXPECT_EQ(mine.at("base_model_name_or_path"), golden_directory(golden.base));
}

double largest_of(const std::vector<float>& values) {
  float largest = 0.0F;
  for (const float value : values) largest = std::max(largest, std::abs(value));
  return largest;
}

double ulp_of(double value) {
  const auto nearest = static_cast<float>(value);
  return double{std::nextafter(nearest, std::numeric_limits<float>::infinity())} - nearest;
}

// The adapter of a weight of the model's files, as PEFT has it.
struct AdapterPart {
  std::string module;
  std::vector<float> a, b;
  bool lookup = false;      // of an embedding, whose inputs are tokens
  bool transposed = false;  // the weight is stored as [inputs, outputs]
};

// Adds scaling * B A to a weight, which is stored as [outputs, inputs], or transposed. If there are
// magnitudes, each output then gets its own as its norm.
void merge(const AdapterCase& golden, const AdapterPart& part, const std::vector<float>& magnitudes,
           std::vector<double>& weight) {
  const std::vector<float>&a = part.a, &b = part.b;
  const Json& settings = golden.facts.at("adapter");
  const auto [rank, alpha] = golden.size_of(part.module);
  const bool root = settings.at("use_rslora").get<bool>();
  const bool transposed = part.transposed || settings.at("fan_in_fan_out").get<bool>();
  const double scaling = alpha / (root ? std::sqrt(double(rank)) : double(rank));
  const size_t inputs = a.size() / rank, outputs = b.size() / rank;
  ASSERT_EQ(weight.size(), inputs * outputs);
  for (size_t out = 0; out < outputs; ++out) {
    double squares = 0.0;
    const auto element = [&](size_t in) -> double& {
      return weight[transposed ? in * outputs + out : out * inputs + in];
    };
    for (size_t in = 0; in < inputs; ++in) {
      double sum = 0.0;
      for (size_t k = 0; k < rank; ++k) sum += double{b[out * rank + k]} * a[k * inputs + in];
      element(in) += scaling * sum;
      squares += element(in) * element(in);
    }
    if (magnitudes.empty()) continue;
    for (size_t in = 0; in < inputs; ++in) element(in) *= magnitudes.at(out) / std::sqrt(squares);
  }
}

// Gate and up of all experts of a layer, or up alone, have one adapter, inside of that of down.
AdapterPart part_of(const AdapterCase& golden, const std::string& name, size_t elements,
                    const Tensors& adapter) {
  const std::string experts = ".experts.";
  const std::string module = name.substr(0, name.rfind('.'));
  const size_t at = name.find(experts);
  const auto tensor = [&](const std::string& tensor_name) {
    return adapter.contains(tensor_name) ? adapter.at(tensor_name) : std::vector<float>();
  };
  if (adapter.contains(module + kLookupA)) {
    return {module, tensor(module + kLookupA), tensor(module + kLookupB), true, true};
  }
  if (at == name.npos || !name.ends_with(".weight")) {
    return {module, tensor(module + kA), tensor(module + kB)};
  }
  const size_t expert = std::stoul(name.substr(at + experts.size()));
  const bool down = name.ends_with("w2.weight") || name.ends_with("down_proj.weight");
  const bool up = name.ends_with("w3.weight") || name.ends_with(".up_proj.weight");
  AdapterPart part{name.substr(0, at) + (down ? ".experts" : ".experts.base_layer"), {}, {}};
  const std::vector<float> a = tensor(part.module + kA), b = tensor(part.module + kB);
  const size_t count = golden.experts();
  const size_t rank = golden.size_of(part.module).first;
  const size_t inputs = a.size() / count / rank, outputs = elements / inputs;
  part.a.assign(a.begin() + static_cast<ptrdiff_t>(expert * rank * inputs),
                a.begin() + static_cast<ptrdiff_t>((expert + 1) * rank * inputs));
  const bool second = up && b.size() > outputs * rank * count;  // gate is first
  for (size_t out = second ? outputs : 0, end = out + outputs; out < end; ++out) {
    for (size_t k = 0; k < rank; ++k) part.b.push_back(b.at((out * rank + k) * count + expert));
  }
  return part;
}

// Merges the adapter of all experts of a layer into their weight, which is stored as [experts,
// inputs, outputs]. Returns the module of the adapter.
std::string merge_experts(const AdapterCase& golden, const std::string& name,
                          const Tensors& adapter, std::vector<double>& weight) {
  const size_t count = golden.experts(), elements = weight.size() / count;
  std::string module;
  for (size_t expert = 0; expert < count; ++expert) {
    // The name that this matrix has where every expert has its own.
    const std::string own = name.substr(0, name.rfind('.')) + "." + std::to_string(expert) +
                            (name.ends_with("down_proj") ? ".down_proj" : ".gate_up_proj");
    AdapterPart part = part_of(golden, own + ".weight", elements, adapter);
    part.transposed = true;
    const auto begin = weight.begin() + static_cast<ptrdiff_t>(expert * elements);
    std::vector<double> matrix(begin, begin + static_cast<ptrdiff_t>(elements));
    merge(golden, part, {}, matrix);
    std::copy(matrix.begin(), matrix.end(), begin);
    module = part.module;
  }
  return module;
}

double furthest(const std::vector<float>& values, const std::vector<double>& exact) {
  EXPECT_EQ(values.size(), exact.size());
  double most = 0.0;
  for (size_t i = 0; i < exact.size(); ++i) most = std::max(most, std::abs(values[i] - exact[i]));
  return most;
}

// `longshore export --merged` writes the whole model: its weights are those of merge() with the
// exported adapter within 2 units of the largest element's last place, parameters that are trained
// as a whole have their new values, and all others the bytes of the model.
void expect_merged(const AdapterCase& golden, const RunDriver& run) {
  const std::string to = run.directory() + "/merged";
  const Ended said =
      run_command({"export", run.directory() + "/config.toml", "--merged", "--to", to});
  ASSERT_EQ(said.exit_code, 0) << said.err;
  EXPECT_FALSE(std::filesystem::exists(to + "/adapter_model.safetensors"));
  EXPECT_FALSE(std::filesystem::exists(to + "/adapter_config.json"));
  const Tensors merged = read_tensors(to + "/model.safetensors");
  const Tensors model = read_tensors(golden_directory(golden.base) + "/model.safetensors");
  const Tensors adapter = read_tensors(run.directory() + "/hf/adapter_model.safetensors");
  ASSERT_EQ(merged.size(), model.size());
  std::set<std::string> used;
  if (golden.tied()) used.insert(kPeftPrefix + kTiedHead);
  for (const auto& [name, values] : model) {
    ASSERT_TRUE(merged.contains(name)) << name;
    const std::vector<float>& mine = merged.at(name);
    std::string in_adapter = kPeftPrefix + published(name);
    for (const auto& [tensor, unused] : adapter) {
      if (unwrapped(tensor) == in_adapter) in_adapter = tensor;
    }
    const AdapterPart part = part_of(golden, in_adapter, values.size(), adapter);
    if (adapter.contains(in_adapter)) {
      EXPECT_EQ(mine, adapter.at(in_adapter)) << name;
      used.insert(in_adapter);
    } else if (name.ends_with(".weight") && !part.a.empty()) {
      std::vector<double> exact(values.begin(), values.end());
      const std::vector<float> magnitudes =
          golden.dora() ? adapter.at(part.module + kMagnitude) : std::vector<float>();
      merge(golden, part, magnitudes, exact);
      EXPECT_LE(furthest(mine, exact), 2.0 * ulp_of(largest_of(mine))) << name;
      used.insert(part.module + (part.lookup ? kLookupA : kA));
      used.insert(part.module + (part.lookup ? kLookupB : kB));
      if (golden.dora()) used.insert(part.module + kMagnitude);
    } else if (name.ends_with(".experts.gate_up_proj") || name.ends_with(".experts.down_proj")) {
      std::vector<double> exact(values.begin(), values.end());
      const std::string module = merge_experts(golden, in_adapter, adapter, exact);
      EXPECT_LE(furthest(mine, exact), 2.0 * ulp_of(largest_of(mine))) << name;
      used.insert({module + kA, module + kB});
    } else {
      EXPECT_EQ(mine, values) << name;
    }
  }
  EXPECT_EQ(used.size(), adapter.size());
  for (const auto& [name, sketch] : golden.part("merged.")) {
    EXPECT_LE(relative_error(merged.at(name), sketch), 1e-4) << name;
  }
}

class AdapterTrajectory : public testing::TestWithParam<std::string> {};

// A run that starts from an adapter of PEFT follows PEFT. Its export is what PEFT would write, and
// merged it is what merge_and_unload makes.
TEST_P(AdapterTrajectory, FollowsPeft) {
  const AdapterCase golden(GetParam());
  const RunDriver run("adapter-" + GetParam());
  ASSERT_EQ(run.train(joined(golden.arguments(), {"--checkpoint.export=end"})), 0);
  expect_peft(golden, run);
  expect_peft_files(golden, run);
  expect_merged(golden, run);
}

// All rows of a step in one micro-batch make the same run.
TEST_P(AdapterTrajectory, FollowsPeftInOneMicroBatch) {
  const AdapterCase golden(GetParam());
  const RunDriver run("adapter-batch-" + GetParam());
  ASSERT_EQ(run.train(joined(golden.arguments(), {"--train.micro_batch=3"})), 0);
  expect_peft(golden, run);
}

INSTANTIATE_TEST_SUITE_P(Adapters, AdapterTrajectory, testing::ValuesIn(adapter_golden_names()),
                         golden_test_name);

// An adapter with matrices of single experts, as PEFT wrote it with transformers 4, starts the run
// that the adapter starts which PEFT 0.21 makes of it.
TEST(OlderAdapter, StartsTheRunOfWhatPeftMakesOfIt) {
  std::map<std::string, std::vector<float>> states[2];
  std::vector<double> losses[2];
  int number = 0;
  for (const std::string name : {"older", "adapter"}) {
    const RunDriver run("older-adapter-" + name);
    const std::string path = test_data() + "/parity/golden_adapter_older/" + name;
    ASSERT_EQ(run.train(joined(RunDriver::golden_arguments("mixtral"),
                               {"--adapter.kind=lora", "--adapter.path=\"" + path + "\"",
                                "--train.steps=2", "--checkpoint.export=end"})),
              0);
    losses[number] = run.steps("loss");
    states[number++] = run.state();
    EXPECT_EQ(
        shapes_of(run.directory() + "/hf/adapter_model.safetensors"),
        shapes_of(test_data() + "/parity/golden_adapter_older/adapter/adapter_model.safetensors"));
  }
  EXPECT_EQ(losses[0], losses[1]);
  EXPECT_TRUE(states[0] == states[1]);
}

class GpuAdapterTrajectory : public testing::TestWithParam<std::string> {};

// A run on a GPU in fp32 follows PEFT, also without recomputation.
TEST_P(GpuAdapterTrajectory, FollowsPeft) {
  LONGSHORE_NEEDS_GPU();
  const AdapterCase golden(GetParam());
  for (const std::string recompute : {"unit", "none"}) {
    const RunDriver run("gpu-adapter-" + recompute + "-" + GetParam());
    ASSERT_EQ(run.train(joined(golden.arguments(),
                               {"--device.kind=cuda", "--fsdp.recompute=" + recompute})),
              0);
    expect_peft(golden, run);
  }
}

INSTANTIATE_TEST_SUITE_P(Adapters, GpuAdapterTrajectory, testing::ValuesIn(adapter_golden_names()),
                         golden_test_name);

}  // namespace
}  // namespace longshore
