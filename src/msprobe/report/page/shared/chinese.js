export const chinese = /** @type {Record<string, string>} */ ({});
