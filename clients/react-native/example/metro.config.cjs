/** Metro for the example: the SDK from its source, whose imports say `.js` where the file is `.ts`. */
const path = require("node:path");
const { getDefaultConfig, mergeConfig } = require("@react-native/metro-config");

const root = path.resolve(__dirname, "..");
const typescript = path.resolve(root, "../typescript/src");

module.exports = mergeConfig(getDefaultConfig(root), {
  projectRoot: root,
  watchFolders: [typescript],
  transformer: { extendsBabelConfigPath: path.join(__dirname, "babel.config.cjs") },
  resolver: {
    useWatchman: false,
    nodeModulesPaths: [path.join(root, "node_modules")],
    resolveRequest(context, name, platform) {
      if (name === "sessile") return { type: "sourceFile", filePath: path.join(typescript, "index.ts") };
      const isOurs = context.originModulePath.startsWith(typescript) || context.originModulePath.startsWith(path.join(root, "src"));
      return context.resolveRequest(context, isOurs && name.startsWith("./") ? name.replace(/\.js$/, "") : name, platform);
    },
  },
});
