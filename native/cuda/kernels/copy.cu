// Copies: a source is read once, however many targets it has.
#ifdef PHX_COPY

constexpr int kInFlight = 4;

template <int kTargets, class Pieces>
PHX_INLINE void copy_pieces(const Entry& entry, const Pieces& pieces) {
  typedef typename Pieces::Piece Piece;
  const u64 source = entry.sources[0], only_target = entry.targets[0];
  for_each_piece<kInFlight>(pieces, [&](const u64(&offsets)[kInFlight], const bool(&is_there)[kInFlight]) {
    Piece copies[kInFlight];
    PHX_UNROLL for (int u = 0; u < kInFlight; ++u) copies[u] = load<Piece>(source + offsets[u]);
    if constexpr (kTargets == 1) store_all(only_target, copies, offsets, is_there);
    else store_to_targets(entry, copies, offsets, is_there);
  });
}

template <int kTargets, class Wide>
PHX_INLINE void copy_by(const Entry& entry) {
  const Cut<Wide, u8> cut(entry.sources[0], entry.first, entry.count, true);
  copy_pieces<kTargets>(entry, cut.wide);
  copy_pieces<kTargets>(entry, cut.small);
}

// As wide as the addresses allow.
template <int kTargets>
PHX_INLINE void copy(const KernelArguments& arguments) {
  const Entry entry(arguments);
  if (kTargets == 1 && entry.targets[0] == 0) return;
  const u64 misalignment = entry.misalignment();
  if (misalignment == 0) copy_by<kTargets, Vector>(entry);
  else if (misalignment % 8 == 0) copy_by<kTargets, u64>(entry);
  else if (misalignment % 4 == 0) copy_by<kTargets, u32>(entry);
  else if (misalignment % 2 == 0) copy_by<kTargets, u16>(entry);
  else copy_by<kTargets, u8>(entry);
}

PHX_KERNEL(copy_1, KernelArguments) { copy<1>(arguments); }
PHX_KERNEL(copy_any, KernelArguments) { copy<0>(arguments); }

#endif  // PHX_COPY
