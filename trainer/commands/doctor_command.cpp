// doctor: what users get wrong about a machine, each with what to do.
#include "base/errors.h"
#include "base/json.h"
#include "base/output.h"
#include "config/run_config.h"
#include "trainer/commands/command.h"
#include "trainer/doctor/diagnosis.h"

namespace longshore {
namespace {

struct DoctorOptions {
  RunArguments run;
  bool json = false;
};

// Where runs write: what the run files say, or where the command was given.
std::vector<DirectoryFacts> try_directories(const RunArguments& run) {
  if (run.files.empty() && run.overrides.empty()) return {try_directory("here", ".")};
  const RunConfig config = load_run_config(run.files, run.overrides, {.complete = false});
  std::vector<DirectoryFacts> directories;
  if (!config.run.dir.empty()) directories.push_back(try_directory("run.dir", config.run.dir));
  for (const std::string& directory : config.offload.nvme) {
    directories.push_back(try_directory("offload.nvme", directory));
  }
  return directories;
}

// kFailure where something will end a run.
int run_doctor(const DoctorOptions& options) {
  MachineFacts facts = read_machine_facts();
  facts.directories = try_directories(options.run);
  const std::vector<Diagnosis> diagnoses = diagnose(facts);
  print_raw(options.json
                ? to_json(diagnoses).dump(2, ' ', false, Json::error_handler_t::replace) + "\n"
                : format_diagnoses(diagnoses));
  return static_cast<int>(any_failed(diagnoses) ? ExitCode::kFailure : ExitCode::kDone);
}

void add_doctor(CLI::App& command, CommandLine& line) {
  DoctorOptions& options = call_with_options(command, line, run_doctor);
  options.run.overrides = line.overrides;
  command.add_option("files", options.run.files,
                     "run files, whose directories are looked at; without them: this one");
  command.add_flag("--json", options.json, "as one JSON object");
}

}  // namespace

extern const Command kDoctorCommand = {
    .group = CommandGroup::kLook,
    .name = "doctor",
    .sentence = "look at this machine: driver, limits, drives, clocks; each with what to do",
    .add = add_doctor};

}  // namespace longshore
