// Exporter: writes a trained model as a Hugging Face directory: files of the source copied byte for
// byte, weights under the same names, shapes, file split and types. One thread; memory is bounded
// by a few chunks, whatever the model.
//
// The directory appears by rename, complete, synced, and read back with every checksum compared;
// until then an older export at the destination stays as it is.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hf/export_plan.h"
#include "hf/model_directory.h"
#include "shard/load_parameters.h"
#include "shard/unit_spec.h"

namespace longshore {

struct ExportResult {
  std::string path;                // where the directory is, absolute
  std::vector<std::string> files;  // all that was written, in order
  Bytes bytes = 0;                 // their sum
  int64_t tensors = 0;             // each compared with its checksum after reading back
};

// Throws ConfigError where `destination` is the source's directory or lies in it, where no export
// can go whatever else is done. Neither needs to be there.
void check_export_place(const ModelDirectory& source, const std::string& destination);

// Throws ConfigError where `destination` is the source or in it, or a link, or where a file that is
// not of an export, or was changed since, has the name of one that would be written. For the start
// of a run, so that its end is no surprise.
void check_export_destination(const ModelDirectory& source, const ModelSpec& spec,
                              const std::string& destination, const ExportOptions& options = {});

// Writes `destination`, which may hold an older export; other files in it stay, and a README.md or
// LICENSE of somebody's is kept instead of the source's. `read_parameter` is called file by file,
// each parameter front to back. IoError when the disk is too full, before anything is written.
ExportResult export_model(const ModelDirectory& source, const ModelSpec& spec,
                          const std::string& destination, const ParameterReader& read_parameter,
                          const ExportOptions& options = {});

}  // namespace longshore
