#include "model/workspace.h"

namespace longshore {

UnitWorkspace decoder_workspace(const ArchSpec&, const ModelSpec&, UnitId, const WorkspaceQuery&) {
  return {};
}

}  // namespace longshore
