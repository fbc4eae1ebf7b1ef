// Writes a trained model as a Hugging Face directory. Other files of the source are
// copied byte for byte; weights keep names, shapes, file split and types. One thread; memory is
// bounded by a few chunks for any model size; for packed parameters by one matrix of an expert, or
// 128 rows of another.
//
// The directory appears by rename when it is complete, synced, and verified by reading it back.
// Until then an older export at the destination stays unchanged.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hf/export_plan.h"
#include "hf/model_directory.h"
#include "hf/repacked_tensor.h"
#include "shard/load_parameters.h"
#include "shard/unit_spec.h"

namespace longshore {

// A trained parameter that was packed again (ExportOptions::published).
struct PackedParameter {
  std::string name;
  PackedChange change;
};

struct ExportResult {
  std::string path;                // absolute path of the directory
  std::vector<std::string> files;  // all written files, in order
  Bytes bytes = 0;                 // their sum
  int64_t tensors = 0;             // each verified by checksum after reading back
  std::vector<PackedParameter> packed;
};

// Throws ConfigError if `destination` is the source's directory or inside it, which is never
// allowed. `destination` need not exist.
void check_export_place(const ModelDirectory& source, const std::string& destination);

// Throws ConfigError if `destination` is the source, inside it, or a link, if a foreign or changed
// file has the name of a file to be written, or if it holds foreign weights, which programs may
// load in place of the export's.
void check_export_destination(const ModelDirectory& source, const ModelSpec& spec,
                              const std::string& destination, const ExportOptions& options = {});

// Writes `destination`, which may hold an older export. Foreign files stay; foreign documentation
// (README.md, LICENSE) is kept instead of the source's. Calls `read_parameter` file by file, each
// parameter front to back; twice for a packed one whose scales come before its codes. Throws
// IoError before writing if the disk is too full.
ExportResult export_model(const ModelDirectory& source, const ModelSpec& spec,
                          const std::string& destination, const ParameterReader& read_parameter,
                          const ExportOptions& options = {});

}  // namespace longshore
