import { defineConfig } from "vitest/config";
import type { Plugin } from "vite";

// KaTeX names each font three times; every browser that runs this page reads woff2.
const woff2Only: Plugin = {
  name: "woff2-only",
  enforce: "pre",
  transform(code, id) {
    if (!id.endsWith("katex.min.css")) return null;
    return code.replace(/,url\([^)]*\.(?:woff|ttf)\) format\("(?:woff|truetype)"\)/g, "");
  },
};

// `npm run dev` serves the page from here and sends the rest to a running `calla serve`.
const server = "http://127.0.0.1:8080";

export default defineConfig({
  plugins: [woff2Only],
  esbuild: { jsx: "automatic", jsxImportSource: "preact" },
  build: {
    target: "es2022",
    assetsInlineLimit: 0, // the page's policy allows no data: URLs
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
  },
  server: { proxy: { "/v1": server, "/api": server } },
  test: {
    fileParallelism: false, // one browser at a time
    projects: [
      { extends: true, test: { name: "unit", include: ["tests/unit/**/*.test.ts"], environment: "jsdom" } },
      {
        extends: true,
        test: { name: "browser", include: ["tests/browser/**/*.test.ts"], environment: "node", testTimeout: 60_000, hookTimeout: 60_000, expect: { poll: { timeout: 15_000 } } },
      },
    ],
  },
});
