// The counting allocator: every CPU allocation of LibTorch goes through it once a WorkspaceBudget
// was made, and is counted against the budget in force. Without one it is a plain allocator with
// 64-byte alignment. Memory may outlive its budget: each block remembers the meter that counted it.
#pragma once

#include <c10/core/Allocator.h>

#include <memory>
#include <string>
#include <string_view>

#include "device/device_memory.h"

namespace longshore {

// While it lives, LibTorch's CPU memory counts as `memory`'s workspace, whichever thread asks, and
// going over the cap throws OutOfMemoryError out of the LibTorch call. The budget before it, if
// any, is in force again afterwards: budgets end in reverse order. One owner thread makes and ends
// them.
class WorkspaceBudget {
 public:
  explicit WorkspaceBudget(const DeviceMemory& memory);
  WorkspaceBudget(const WorkspaceBudget&) = delete;
  WorkspaceBudget& operator=(const WorkspaceBudget&) = delete;
  ~WorkspaceBudget();

 private:
  std::shared_ptr<WorkspaceMeter> mine_;
  std::shared_ptr<WorkspaceMeter> before_;
};

// While it lives, what this thread allocates is booked under `label` ("block.3 backward"). Inner
// labels cover outer ones. Costs a look-up: one for each unit, not one for each tensor.
class WorkspaceLabel {
 public:
  explicit WorkspaceLabel(std::string_view label);
  WorkspaceLabel(const WorkspaceLabel&) = delete;
  WorkspaceLabel& operator=(const WorkspaceLabel&) = delete;
  ~WorkspaceLabel();

 private:
  std::shared_ptr<WorkspaceMeter> meter_before_;
  WorkspaceMeter::Account* account_before_;
};

// The label in force on this thread; on one that has none (LibTorch's own run a GPU's backward),
// the last that any thread set; "unlabelled" where there never was one.
std::string current_workspace_label();

// The allocator itself, as LibTorch sees it; lives as long as the process.
c10::Allocator& counting_allocator();

}  // namespace longshore
