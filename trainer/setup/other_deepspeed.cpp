// The settings of DeepSpeed that a file of Axolotl, LLaMA-Factory or TRL names.
#include <algorithm>
#include <array>
#include <filesystem>
#include <initializer_list>

#include "base/file.h"
#include "base/texts.h"
#include "config/other_trainers.h"
#include "config/toml_document.h"
#include "trainer/setup/other_findings.h"

namespace longshore {
namespace {

namespace fs = std::filesystem;

constexpr JsonLimits kLimits{.max_bytes = kMiB, .max_depth = 16, .max_values = 20'000};

// Members that affect how DeepSpeed runs, but not what it trains.
constexpr std::array<std::string_view, 24> kExecution = {"activation_checkpointing",
                                                         "aio",
                                                         "amp",
                                                         "autotuning",
                                                         "bf16",
                                                         "bfloat16",
                                                         "comms_logger",
                                                         "communication_data_type",
                                                         "csv_monitor",
                                                         "data_types",
                                                         "dump_state",
                                                         "elasticity",
                                                         "flops_profiler",
                                                         "gradient_accumulation_steps",
                                                         "gradient_predivide_factor",
                                                         "memory_breakdown",
                                                         "prescale_gradients",
                                                         "steps_per_print",
                                                         "tensorboard",
                                                         "train_micro_batch_size_per_gpu",
                                                         "wall_clock_breakdown",
                                                         "wandb",
                                                         "zero_allow_untested_optimizer",
                                                         "zero_force_ds_cpu_optimizer"};

bool is_given(const Json& value) {
  return !value.is_null() && value != "auto";
}

class DeepSpeedReader {
 public:
  DeepSpeedReader(const Json& file, const Json& settings, bool packed, OtherFindings& found)
      : file_(file), settings_(settings), packed_(packed), in_(settings, found) {}

  void read() {
    const Json zero = settings_.value("zero_optimization", Json::object());
    read_offload(zero.is_object() ? zero : Json::object());
    read_optimizer();
    if (const Json* clip = given("gradient_clipping")) {
      set_unless("train.max_grad_norm", "deepspeed.gradient_clipping", *clip, {"max_grad_norm"});
    }
    if (const Json* batch = given("train_batch_size")) {
      in_.left("deepspeed.train_batch_size",
               "it is the batch of all GPUs, " + printable(batch->dump(), 20) +
                   "; set train.sequences_per_step",
               "train.sequences_per_step");
    }
    if (const Json* fp16 = given("fp16");
        fp16 != nullptr && fp16->is_object() && fp16->value("enabled", Json()) == true) {
      in_.left("deepspeed.fp16", "Longshore computes in bf16 or fp32; the run file says bf16",
               "precision.compute");
    }
    const Json recompute = settings_.value("activation_checkpointing", Json::object());
    if (recompute.is_object() && recompute.value("cpu_checkpointing", Json()) == true) {
      in_.set("offload.activations", "\"host\"");
    }
    for (const auto& [name, value] : settings_.items()) {
      constexpr std::array<std::string_view, 6> kRead = {
          "zero_optimization", "optimizer", "scheduler",
          "gradient_clipping", "fp16",      "train_batch_size"};
      const bool known = std::ranges::find(kRead, name) != kRead.end() ||
                         std::ranges::find(kExecution, name) != kExecution.end();
      if (!known && is_given(value)) {
        in_.left("deepspeed." + printable(name, 40), "`init --from` does not know this key");
      }
    }
  }

 private:
  const Json* given(const char* name) {
    const auto member = settings_.find(name);
    return member == settings_.end() || !is_given(*member) ? nullptr : &*member;
  }

  // The trainer's own file goes before; transformers asks for equal values.
  void set_unless(const std::string& ours, const std::string& place, const Json& value,
                  std::initializer_list<const char*> theirs) {
    for (const char* name : theirs) {
      if (file_.contains(name) && !file_.at(name).is_null()) return;
    }
    const std::optional<double> number = number_of(value);
    number ? in_.set(ours, toml_real(*number)) : in_.left(place, "expected a number", ours);
  }

  static std::string device_of(const Json& zero, const char* name) {
    const auto part = zero.find(name);
    return part == zero.end() || !part->is_object() ? "" : member_text(*part, "device");
  }

  void read_offload(const Json& zero) {
    const bool state = device_of(zero, "offload_optimizer") == "nvme";
    const bool parameters = device_of(zero, "offload_param") == "nvme";
    if (!state && !parameters) return;
    if (packed_) {
      return in_.left("deepspeed.zero_optimization",
                      "a base in 4 bits and its adapters stay in host memory, not on drives");
    }
    if (!state) {
      return in_.left("deepspeed.zero_optimization.offload_param",
                      "parameters are on drives where the optimizer state is; set "
                      "offload.optimizer and offload.parameters to \"nvme\", and offload.nvme",
                      "offload.parameters");
    }
    std::vector<std::string> drives;
    for (const char* part : {"offload_optimizer", "offload_param"}) {
      if (device_of(zero, part) != "nvme") continue;
      const std::string path = member_text(zero[part], "nvme_path");
      if (!path.empty() && std::ranges::find(drives, path) == drives.end()) drives.push_back(path);
    }
    if (drives.empty()) {
      return in_.left("deepspeed.zero_optimization.offload_optimizer",
                      "it names no nvme_path; set offload.optimizer = \"nvme\" and offload.nvme",
                      "offload.nvme");
    }
    in_.set("offload.optimizer", "\"nvme\"");
    if (parameters) in_.set("offload.parameters", "\"nvme\"");
    in_.set("offload.nvme", toml_list(drives));
  }

  void read_optimizer() {
    if (const Json* schedule = given("scheduler")) {
      in_.left("deepspeed.scheduler",
               "the schedule is that of lr_scheduler; " + printable(schedule->dump(), 60) +
                   " would be set in [schedule]",
               "schedule.name");
    }
    const Json* optimizer = given("optimizer");
    if (optimizer == nullptr || !optimizer->is_object()) return;
    const std::string type = member_text(*optimizer, "type");
    if (!type.empty() && type != "Adam" && type != "AdamW") {
      in_.refuse("deepspeed.optimizer = " + printable(type, 40),
                 "Longshore has no optimizer but AdamW", "optimizer.name");
    }
    const Json params = optimizer->value("params", Json::object());
    if (!params.is_object()) return;
    for (const auto& [name, value] : params.items()) {
      const std::string place = "deepspeed.optimizer." + printable(name, 40);
      if (!is_given(value)) continue;
      if (name == "lr") {
        set_unless("optimizer.lr", place, value, {"learning_rate"});
      } else if (name == "eps") {
        set_unless("optimizer.eps", place, value, {"adam_epsilon"});
      } else if (name == "weight_decay") {
        set_unless("optimizer.weight_decay", place, value, {"weight_decay"});
      } else if (name == "betas" && value.is_array() && value.size() == 2 && number_of(value[0]) &&
                 number_of(value[1])) {
        if (file_.contains("adam_beta1") || file_.contains("adam_beta2")) continue;
        in_.set("optimizer.betas", "[" + toml_real(*number_of(value[0])) + ", " +
                                       toml_real(*number_of(value[1])) + "]");
      } else {
        in_.left(place, "`init --from` does not know this key");
      }
    }
  }

  const Json& file_;
  const Json& settings_;
  bool packed_;
  OtherReader in_;
};

}  // namespace

OtherFindings read_other_deepspeed(const Json& file, const std::string& path, bool packed) {
  OtherFindings found;
  OtherReader in(file, found);
  const Json* const named = in.take("deepspeed");
  if (named == nullptr || *named == "") return found;
  const std::string sharded(find_other_key("deepspeed")->why);
  if (named->is_object()) {
    DeepSpeedReader(file, *named, packed, found).read();
    in.needless("deepspeed", sharded);
    return found;
  }
  const fs::path asked(named->is_string() ? named->get<std::string>() : named->dump());
  const fs::path beside = fs::path(path).parent_path();
  for (const fs::path& place : {asked, beside / asked, beside / asked.filename()}) {
    std::error_code ignored;
    if (!fs::is_regular_file(place, ignored)) continue;
    const Json settings =
        parse_json(read_input(place.string(), kLimits.max_bytes), kLimits, place.string());
    if (!settings.is_object()) {
      in.refuse("deepspeed", place.string() + ": expected an object of settings");
      return found;
    }
    DeepSpeedReader(file, settings, packed, found).read();
    in.needless("deepspeed", sharded);
    return found;
  }
  in.needless("deepspeed", sharded + ". " + printable(asked.string(), 80) +
                               " is not here, so its nvme_path and its optimizer were not read");
  return found;
}

}  // namespace longshore
