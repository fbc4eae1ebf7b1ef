// Makes the StartIdentity of what was read of a model, and compares it with that of the run's
// beginning. ReadSums (src/hf) sums the values while they are read anyway; the sums depend neither
// on ranks, shards, units and tiers, nor on how tensors are spread over files. These functions are
// for the main thread.
#pragma once

#include <map>
#include <string>

#include "comm/world/world.h"
#include "trainer/checkpoint/start_identity.h"
#include "trainer/model/model_source.h"

namespace longshore {

// Returns the identity of what this process, or all ranks of `world` together, read of the model
// since it was opened, or since forget_reads. Reads once more the few pieces that two ranks share,
// where matrices are packed. `world` is null for a single process. Collective.
StartIdentity read_identity(const ModelSource& source, World* world);

// Returns type and shape of a tensor as texts of StartIdentity::frozen begin: "BF16 [2, 3]".
std::string described_form(const TensorInfo& tensor);

// Reads every part of frozen tensors that was not read yet, and keeps nothing: for commands that
// leave a model in its files and print or write results before they have read all of it.
void read_rest_of_frozen(const ModelSource& source);

// Begins the sums anew, because files may have changed: an export reads them once more.
void forget_reads(const ModelSource& source);

// Returns the beginning of a sentence that names the first frozen tensor with other values than
// `saved` (StartIdentity::frozen) has, and its file: "FILE: tensor 'NAME' has other values"; empty
// if those in both are equal.
std::string other_values(const std::map<std::string, std::string>& saved,
                         const StartIdentity& found, const ModelSource& source);

// Returns a sentence that names the first frozen tensor with other values than `saved` has, and its
// file; empty if those in both are equal. `when` says when the saved values were read.
std::string frozen_difference(const StartIdentity& saved, const StartIdentity& found,
                              const ModelSource& source, const std::string& when);

// Returns a sentence about frozen tensors that could not be compared with `saved`, and why; empty
// if all were. `unread` is the reason for those that were not read.
std::string not_compared(const StartIdentity& saved, const StartIdentity& found,
                         const ModelSource& source, const std::string& unread);

// Returns whether every frozen tensor was read whole.
bool read_all_frozen(const StartIdentity& found, const ModelSource& source);

}  // namespace longshore
