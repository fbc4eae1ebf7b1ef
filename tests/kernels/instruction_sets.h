// Runs the CPU's kernels on one instruction set after the other. Test code.
#pragma once

#include <hwy/targets.h>

#include <cstdint>

namespace longshore::kernels {

// Lets the kernels use one instruction set only, or all that the processor has (0).
inline void use_targets(int64_t targets) {
  hwy::SetSupportedTargetsForTest(targets);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

// Calls body(target) once for every instruction set of the processor, and then allows all.
template <typename Body>
void on_each_target(const Body& body) {
  use_targets(0);
  for (int64_t left = hwy::SupportedTargets(); left != 0; left &= left - 1) {
    const int64_t target = left & -left;
    use_targets(target);
    body(target);
  }
  use_targets(0);
}

}  // namespace longshore::kernels
